"""What the bytes of one SKILL.md are: a skill, or the reasons why they are none."""

import codecs
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.sources.skills.frontmatter import (
    Fault,
    Front,
    Parts,
    mended,
    read_front,
    split,
)
from holdfast.sources.skills.rules import Declared, declared, severity
from holdfast.sources.skills.skill import (
    BODY_TOKENS_WARN,
    Skill,
    SkillFinding,
    SkillMode,
    SkillReport,
    SkillSource,
)
from holdfast.sources.text import path_text


def read_skill(
    raw: bytes, file: str, source: SkillSource, mode: SkillMode, *, faults: Iterable[Fault] = ()
) -> SkillReport:
    """Never raises. `faults` are what was already found on the way to the file; the folder's name is a part of it."""
    folder = os.path.dirname(file)
    found = list(faults)
    text = _decoded(raw, found)
    parts = split(_without_nul(text, found) if mode == "lenient" else text)
    if isinstance(parts, Fault):
        return report(file, (*found, parts), mode)
    found += parts.faults
    front = _front(parts, mode, found)
    if front.fields is None:
        return report(file, found, mode)
    said, broken = declared(front.fields, os.path.basename(folder), mode, front.lines)
    found += broken
    # Elsewhere than in a body, a NUL is a fault of the YAML.
    skill = _skill(said, _without_nul(parts.body, found, text), source, folder)
    if skill.over_body_token_warn:
        what = f"the body has about {skill.estimated_body_tokens} tokens, over {BODY_TOKENS_WARN}"
        found.append(Fault("body-length", what, "move what is not always needed into files beside it", 1))
    name = front.fields.get("name")
    return report(file, found, mode, name=name if isinstance(name, str) else None, skill=skill)


def report(
    file: str, faults: Sequence[Fault], mode: SkillMode, *, name: str | None = None, skill: Skill | None = None
) -> SkillReport:
    """The skill, unless the mode takes one of the faults for an error."""
    folder = path_text(os.path.dirname(file))
    if not faults:
        return SkillReport(folder, skill.name if skill else name, skill)
    shown = path_text(file)
    findings = tuple(
        SkillFinding(shown, fault.line, fault.rule, fault.message, fault.mend, grave)
        for fault in faults
        if (grave := severity(fault.rule, mode))
    )
    if any(finding.severity == "error" for finding in findings):
        skill = None
    return SkillReport(folder, skill.name if skill else name, skill, findings)


def _skill(said: Declared, body: str, source: SkillSource, folder: str) -> Skill:
    return Skill(
        said.name,
        said.description,
        body,
        source,
        Path(folder),
        said.license,
        said.compatibility,
        said.metadata,
        said.allowed_tools,
    )


def _decoded(raw: bytes, faults: list[Fault]) -> str:
    """The text with LF at the end of its lines; what is not UTF-8 is replaced, and is a fault."""
    if raw.startswith(codecs.BOM_UTF8):
        faults.append(Fault("byte-order-mark", "a byte order mark stands first", "save it without one", 1))
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        faults.append(Fault("encoding", "the file is not UTF-8", "save it as UTF-8", line))
        text = raw.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def _front(parts: Parts, mode: SkillMode, faults: list[Fault]) -> Front:
    front = read_front(parts.front)
    if front.fields is None and mode == "lenient" and any(fault.rule == "yaml" for fault in front.faults):
        text, lines = mended(parts.front)
        again = read_front(text) if lines else front
        if again.fields is not None:
            faults += (Fault("unquoted", "the value needs quotes", "put it in quotes", line) for line in lines)
            front = again
    faults += front.faults
    return front


def _without_nul(text: str, faults: list[Fault], whole: str | None = None) -> str:
    if "\0" not in text:
        return text
    whole = text if whole is None else whole
    line = whole.count("\n", 0, whole.index("\0")) + 1
    faults.append(Fault("nul", "there is a NUL in the file", "remove it", line))
    return text.replace("\0", "\ufffd")
