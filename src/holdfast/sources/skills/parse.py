"""Parses the bytes of one SKILL.md into a skill or a list of faults."""

import codecs
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.sources.files import format_path
from holdfast.sources.skills.frontmatter import (
    FrontMatter,
    SkillFault,
    SkillFileParts,
    parse_front_matter,
    quote_values,
    split_front_matter,
)
from holdfast.sources.skills.skill import (
    BODY_CAP_RULE,
    BODY_TOKENS_MAX,
    BODY_TOKENS_WARN,
    Skill,
    SkillFinding,
    SkillMode,
    SkillReport,
    SkillSource,
)
from holdfast.sources.skills.validation import check_fields, find_severity


def parse_skill(
    raw: bytes,
    file: str,
    source: SkillSource,
    mode: SkillMode,
    *,
    faults: Iterable[SkillFault] = (),
    body_tokens_max: int = BODY_TOKENS_MAX,
) -> SkillReport:
    """Never raises. `faults` were found while locating the file; the folder name is part of the validation."""
    folder = os.path.dirname(file)
    all_faults = list(faults)
    text = _decode(raw, all_faults)
    parts = split_front_matter(_replace_nul(text, all_faults) if mode == "lenient" else text)
    if isinstance(parts, SkillFault):
        return make_skill_report(file, (*all_faults, parts), mode)
    all_faults += parts.faults
    front = _parse_front(parts, mode, all_faults)
    if front.fields is None:
        return make_skill_report(file, all_faults, mode)
    fields, rule_faults = check_fields(front.fields, os.path.basename(folder), mode, front.lines)
    all_faults += rule_faults
    # Only in the body: a NUL in the front matter is already a YAML fault.
    body = _replace_nul(parts.body, all_faults, text)
    skill = Skill(body=body, source=source, skill_dir=Path(folder), **fields._asdict())
    if skill.estimated_body_tokens >= body_tokens_max or skill.over_body_token_warn:
        all_faults.append(_long_body_fault(skill, body_tokens_max))
    name = front.fields.get("name")
    return make_skill_report(file, all_faults, mode, name=name if isinstance(name, str) else None, skill=skill)


def _long_body_fault(skill: Skill, tokens_max: int) -> SkillFault:
    tokens, fix = skill.estimated_body_tokens, "move what is not always needed into separate files"
    if tokens >= tokens_max:
        message = f"not loadable: the body has about {tokens} tokens, and a session loads fewer than {tokens_max}"
        return SkillFault(BODY_CAP_RULE, message, fix, 1)
    return SkillFault("body-length", f"the body has about {tokens} tokens, over {BODY_TOKENS_WARN}", fix, 1)


def make_skill_report(
    file: str, faults: Sequence[SkillFault], mode: SkillMode, *, name: str | None = None, skill: Skill | None = None
) -> SkillReport:
    """The report; it has no skill if one of the faults is an error in this mode."""
    folder = format_path(os.path.dirname(file))
    if not faults:
        return SkillReport(folder, skill.name if skill else name, skill)
    shown = format_path(file)
    findings = tuple(
        SkillFinding(shown, fault.line, fault.rule, fault.message, fault.fix, level)
        for fault in faults
        if (level := find_severity(fault.rule, mode))
    )
    if any(finding.severity == "error" for finding in findings):
        skill = None
    return SkillReport(folder, skill.name if skill else name, skill, findings)


def _decode(raw: bytes, faults: list[SkillFault]) -> str:
    """The text with LF line ends; invalid UTF-8 is replaced and reported as a fault."""
    if raw.startswith(codecs.BOM_UTF8):
        faults.append(SkillFault("byte-order-mark", "the file starts with a byte order mark", "save it without one", 1))
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        faults.append(SkillFault("encoding", "the file is not UTF-8", "save it as UTF-8", line))
        text = raw.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def _parse_front(parts: SkillFileParts, mode: SkillMode, faults: list[SkillFault]) -> FrontMatter:
    front = parse_front_matter(parts.front, typed=mode == "seed")
    if front.fields is None and mode == "lenient" and any(fault.rule == "yaml" for fault in front.faults):
        text, lines = quote_values(parts.front)
        quoted_front = parse_front_matter(text) if lines else front
        if quoted_front.fields is not None:
            faults += (SkillFault("unquoted", "the value needs quotes", "put it in quotes", line) for line in lines)
            front = quoted_front
    faults += front.faults
    return front


def _replace_nul(text: str, faults: list[SkillFault], whole: str | None = None) -> str:
    if "\0" not in text:
        return text
    whole = text if whole is None else whole
    line = whole.count("\n", 0, whole.index("\0")) + 1
    faults.append(SkillFault("nul", "the file contains a NUL", "remove it", line))
    return text.replace("\0", "\ufffd")
