"""Parses the bytes of one SKILL.md into a skill or a list of faults."""

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
    """Never raises. `faults` were found while locating the file; the folder name is part of the validation."""
    folder = os.path.dirname(file)
    all_faults = list(faults)
    text = _decode(raw, all_faults)
    parts = split(_replace_nul(text, all_faults) if mode == "lenient" else text)
    if isinstance(parts, Fault):
        return report(file, (*all_faults, parts), mode)
    all_faults += parts.faults
    front = _parse_front(parts, mode, all_faults)
    if front.fields is None:
        return report(file, all_faults, mode)
    fields, rule_faults = declared(front.fields, os.path.basename(folder), mode, front.lines)
    all_faults += rule_faults
    # Only in the body: a NUL in the front matter is already a YAML fault.
    skill = _build_skill(fields, _replace_nul(parts.body, all_faults, text), source, folder)
    if skill.over_body_token_warn:
        message = f"the body has about {skill.estimated_body_tokens} tokens, over {BODY_TOKENS_WARN}"
        all_faults.append(Fault("body-length", message, "move what is not always needed into separate files", 1))
    name = front.fields.get("name")
    return report(file, all_faults, mode, name=name if isinstance(name, str) else None, skill=skill)


def report(
    file: str, faults: Sequence[Fault], mode: SkillMode, *, name: str | None = None, skill: Skill | None = None
) -> SkillReport:
    """The report; it has no skill if one of the faults is an error in this mode."""
    folder = path_text(os.path.dirname(file))
    if not faults:
        return SkillReport(folder, skill.name if skill else name, skill)
    shown = path_text(file)
    findings = tuple(
        SkillFinding(shown, fault.line, fault.rule, fault.message, fault.mend, level)
        for fault in faults
        if (level := severity(fault.rule, mode))
    )
    if any(finding.severity == "error" for finding in findings):
        skill = None
    return SkillReport(folder, skill.name if skill else name, skill, findings)


def _build_skill(fields: Declared, body: str, source: SkillSource, folder: str) -> Skill:
    return Skill(
        fields.name,
        fields.description,
        body,
        source,
        Path(folder),
        fields.license,
        fields.compatibility,
        fields.metadata,
        fields.allowed_tools,
    )


def _decode(raw: bytes, faults: list[Fault]) -> str:
    """The text with LF line ends; invalid UTF-8 is replaced and reported as a fault."""
    if raw.startswith(codecs.BOM_UTF8):
        faults.append(Fault("byte-order-mark", "the file starts with a byte order mark", "save it without one", 1))
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


def _parse_front(parts: Parts, mode: SkillMode, faults: list[Fault]) -> Front:
    front = read_front(parts.front)
    if front.fields is None and mode == "lenient" and any(fault.rule == "yaml" for fault in front.faults):
        text, lines = mended(parts.front)
        quoted_front = read_front(text) if lines else front
        if quoted_front.fields is not None:
            faults += (Fault("unquoted", "the value needs quotes", "put it in quotes", line) for line in lines)
            front = quoted_front
    faults += front.faults
    return front


def _replace_nul(text: str, faults: list[Fault], whole: str | None = None) -> str:
    if "\0" not in text:
        return text
    whole = text if whole is None else whole
    line = whole.count("\n", 0, whole.index("\0")) + 1
    faults.append(Fault("nul", "the file contains a NUL", "remove it", line))
    return text.replace("\0", "\ufffd")
