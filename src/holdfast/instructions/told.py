"""Render the instruction texts that a model reads: the part of the prompt, and the result of a recall."""

import hashlib

import msgspec

from holdfast.instructions.asking import Answered
from holdfast.instructions.index_lines import standing_index
from holdfast.instructions.recall import Shelf
from holdfast.instructions.stub import stub_body
from holdfast.instructions.values import Agent, Manifest


def recalled_text(answered: Answered) -> str:
    recalled = answered.recalled
    parts = [f"# {chunk.name}\n\n{chunk.content.text}\n" for chunk in recalled.chunks]
    if not parts:
        parts.append("No instruction unit fits this intent.\n")
    unknown_hints = [f"There is no unit {name!a}.\n" for name in recalled.missed_hints]
    return "\n".join((*parts, *unknown_hints, f"When done, call submit_usage with audit_token {answered.audit_token}"))


def standing_text(agent: Agent, manifest: Manifest, profile: str) -> str:
    """Stub and index; byte-identical while both are unchanged, so that the prompt prefix stays cached."""
    return f"{stub_body(agent, manifest, profile)}\n{standing_index(manifest.body)}"


def eager_text(agent: Agent, instruction_set: Shelf) -> str:
    """All rules and all texts in manifest order; byte-identical while they are unchanged."""
    rules = "".join(f"- {rule}\n" for rule in agent.always_rules)
    texts = (
        f"## {entry.name}\n\n{instruction_set.contents[entry.name].text.strip()}\n"
        for entry in instruction_set.manifest.body
        if entry.name in instruction_set.contents
    )
    return "\n".join(part for part in (rules, *texts) if part)


def manifest_sha256(manifest: Manifest) -> str:
    """The digest by which a session pins the manifest it accepts."""
    return hashlib.sha256(msgspec.json.encode((manifest.fact_uri, manifest.body))).hexdigest()
