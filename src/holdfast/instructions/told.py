"""What a model reads of its instructions: what stands in the prompt, and what a recall answers."""

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
    missed = [f"There is no unit {name!a}.\n" for name in recalled.missed_hints]
    return "\n".join((*parts, *missed, f"When done, call submit_usage with audit_token {answered.audit_token}"))


def standing_text(agent: Agent, manifest: Manifest, profile: str) -> str:
    """Stub and index; the same bytes as long as both say the same."""
    return f"{stub_body(agent, manifest, profile)}\n{standing_index(manifest.body)}"


def eager_text(agent: Agent, shelf: Shelf) -> str:
    """All rules and all texts, in the order of the manifest; the same bytes as long as they say the same."""
    rules = "".join(f"- {rule}\n" for rule in agent.always_rules)
    texts = (
        f"## {entry.name}\n\n{shelf.contents[entry.name].text.strip()}\n"
        for entry in shelf.manifest.body
        if entry.name in shelf.contents
    )
    return "\n".join(part for part in (rules, *texts) if part)


def manifest_sha256(manifest: Manifest) -> str:
    """By which a session can say which manifest it accepts."""
    return hashlib.sha256(msgspec.json.encode((manifest.fact_uri, manifest.body))).hexdigest()
