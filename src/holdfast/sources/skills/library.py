"""The skills of all roots together, parsed from their SKILL.md files; on reload only changed files are read again."""

import codecs
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast.errors import SkillValidationError, UserError
from holdfast.sources.files import FileStamp, format_path, holdfast_home
from holdfast.sources.skills.discovery import SkillFile, SkillLimits, SkillRoot, find_skill, find_skills
from holdfast.sources.skills.frontmatter import (
    FrontMatter,
    SkillFault,
    SkillFileParts,
    parse_front_matter,
    quote_text,
    quote_values,
    split_front_matter,
)
from holdfast.sources.skills.skill import (
    BODY_CAP_RULE,
    BODY_TOKENS_MAX,
    BODY_TOKENS_WARN,
    OPTIONAL_FOLDERS,
    OWN_FOLDER,
    Skill,
    SkillFinding,
    SkillMode,
    SkillReport,
    SkillSource,
)
from holdfast.sources.skills.store import SkillStore
from holdfast.sources.skills.validation import check_fields, find_severity, is_usable_name

logger = logging.getLogger(__name__)


class _CachedReport(msgspec.Struct, frozen=True):
    stamp: FileStamp
    report: SkillReport


class SkillLibrary(msgspec.Struct, frozen=True):
    """The result of reading the roots. `reports` has every folder that looked like a skill, sorted by path."""

    roots: tuple[SkillRoot, ...]
    mode: SkillMode
    store: SkillStore
    reports: tuple[SkillReport, ...] = ()
    limits: SkillLimits = SkillLimits()
    cached_reports: dict[SkillRoot, dict[str, _CachedReport]] = {}

    def reload(self) -> "SkillLibrary":
        """Read the roots again; a file is parsed again only if its modification time, size or inode changed."""
        return read_skill_library(self.roots, self.mode, limits=self.limits, before=self)


def default_skills_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own skills: `skills` in HOLDFAST_HOME (default `~/.holdfast`)."""
    return holdfast_home(os.environ if environ is None else environ) / "skills"


def skill_roots(
    global_dir: Path | str | None,
    workspace: Path | str | None,
    *,
    home: Path | None = None,
    also: Sequence[str] = (),
    modes: Mapping[str, SkillMode] = MappingProxyType({}),
    nested: bool = True,
) -> tuple[SkillRoot, ...]:
    """The folders to read, in increasing precedence; `also` lists some of `OPTIONAL_FOLDERS`.

    `modes` has the modes of folders, by their names in `also` or as `OWN_FOLDER`, that differ from the library's.
    """
    unknown = [folder for folder in also if folder not in OPTIONAL_FOLDERS]
    if unknown:
        raise UserError(f"unknown skill folder {unknown[0]!r}; known are {', '.join(OPTIONAL_FOLDERS)}")
    roots: list[SkillRoot] = []
    if home is not None:
        roots += (
            SkillRoot(str(home / folder), "global", mode=modes.get(folder), nested=nested) for folder in reversed(also)
        )
    if global_dir is not None:
        roots.append(SkillRoot(str(global_dir), "global", mode=modes.get(OWN_FOLDER), nested=nested))
    if workspace is not None:
        roots += (
            SkillRoot(
                os.path.join(workspace, folder), "workspace", str(workspace), mode=modes.get(folder), nested=nested
            )
            for folder in (*reversed(also), OWN_FOLDER)
        )
    return tuple(roots)


def load_skills(
    *, global_dir: Path | str | None, workspace_dir: Path | str | None, mode: SkillMode = "seed"
) -> SkillStore:
    """The skills of two roots; a workspace skill replaces a global one of the same name. A missing root is empty.

    Nothing in a root can make this fail: skills that cannot be used are logged and left out. In seed mode, as the seed
    has it, only the folders directly in a root are skills.
    """
    nested = mode != "seed"
    roots = []
    if global_dir is not None:
        roots.append(SkillRoot(os.fspath(global_dir), "global", nested=nested))
    if workspace_dir is not None:
        roots.append(SkillRoot(os.fspath(workspace_dir), "workspace", nested=nested))
    return read_skill_library(roots, mode).store


def load_skill(skill_dir: Path | str, *, source: SkillSource = "workspace", mode: SkillMode = "seed") -> Skill:
    """The skill in a folder; raises `SkillValidationError` with all errors if it is invalid."""
    result = check_skill(skill_dir, source=source, mode=mode)
    if result.skill is None:
        raise SkillValidationError([str(finding) for finding in result.findings if finding.severity == "error"])
    return result.skill


def check_skill(
    skill_dir: Path | str,
    *,
    source: SkillSource = "workspace",
    mode: SkillMode = "strict",
    limits: SkillLimits | None = None,
) -> SkillReport:
    """Validate the skill in a folder."""
    folder = os.path.abspath(skill_dir)
    skill_file = find_skill(folder, source)
    if skill_file is not None:
        return _build_report(skill_file, source, mode, limits or SkillLimits())
    if not os.path.lexists(folder):
        fault = SkillFault("not-found", "the folder does not exist", "check its path")
    elif not os.path.isdir(folder):
        fault = SkillFault("not-a-folder", "it is not a folder", "a skill is a folder with a SKILL.md in it")
    else:
        fault = SkillFault("missing-file", "there is no SKILL.md in the folder", "add one")
    return make_skill_report(os.path.join(folder, "SKILL.md"), (fault,), mode)


def read_library_at(
    folder: Path | str, mode: SkillMode = "seed", *, nested: bool = True, limits: SkillLimits | None = None
) -> SkillLibrary:
    """The library of a folder that is a skill or a root of skills; if it is neither, the report says what is wrong."""
    result = check_skill(folder, mode=mode, limits=limits)
    if any(finding.rule == "missing-file" for finding in result.findings):
        roots = (SkillRoot(os.fspath(folder), "workspace", nested=nested),)
        root = read_skill_library(roots, mode, limits=limits)
        if root.reports:
            return root
    return SkillLibrary((), mode, SkillStore([result.skill] if result.skill else (), result.findings), (result,))


def read_skill_library(
    roots: Iterable[SkillRoot],
    mode: SkillMode = "seed",
    *,
    limits: SkillLimits | None = None,
    before: SkillLibrary | None = None,
) -> SkillLibrary:
    """Read the roots; of skills with the same name the last root wins. Unchanged files are taken from `before`.

    `mode` applies to the roots that have none of their own.
    """
    limits = SkillLimits() if limits is None else limits
    roots = tuple(roots)
    cached = before.cached_reports if before is not None and before.mode == mode and before.limits == limits else {}
    cached_by_root: dict[SkillRoot, dict[str, _CachedReport]] = {root: {} for root in roots}
    reports: list[SkillReport] = []
    merged: dict[str, Skill] = {}
    for root in roots:
        root_reports: list[SkillReport] = []
        unchanged, root_mode = cached.get(root, {}), root.mode or mode
        for skill_file in find_skills(root, {file: entry.stamp for file, entry in unchanged.items()}, limits):
            if skill_file.raw is None and not skill_file.faults:
                result = unchanged[skill_file.file].report
            else:
                result = _build_report(skill_file, root.source, root_mode, limits)
                _log_findings(result)
            if skill_file.stamp is not None:
                cached_by_root[root][skill_file.file] = _CachedReport(skill_file.stamp, result)
            root_reports.append(result)
        root_reports = _resolve_duplicates(root_reports, root_mode)
        reports += root_reports
        _merge_skills(merged, root_reports)
    if before is not None and before.roots == roots and before.reports == tuple(reports):
        # Keep the same store object, because it holds prepared search indexes.
        return msgspec.structs.replace(before, cached_reports=cached_by_root)
    findings = (finding for skill_report in reports for finding in skill_report.findings)
    return SkillLibrary(roots, mode, SkillStore(merged.values(), findings), tuple(reports), limits, cached_by_root)


def _build_report(skill_file: SkillFile, source: SkillSource, mode: SkillMode, limits: SkillLimits) -> SkillReport:
    file, raw, faults = skill_file.file, skill_file.raw, skill_file.faults
    if raw is None:
        return make_skill_report(file, faults, mode)
    return parse_skill(raw, file, source, mode, faults=faults, body_tokens_max=limits.body_tokens_max)


def _resolve_duplicates(reports: list[SkillReport], mode: SkillMode) -> list[SkillReport]:
    """Sort by path; of two skills in one root with the same name, the first by path keeps it.

    In lenient mode the other is renamed to its folder name, or gets a number appended if that is taken.
    """
    reports.sort(key=lambda item: item.path)
    path_by_name: dict[str, str] = {}
    duplicates = [
        index
        for index, item in enumerate(reports)
        if item.skill is not None and path_by_name.setdefault(item.skill.name, item.path) != item.path
    ]
    for index in duplicates:
        item = reports[index]
        assert item.skill is not None
        message = f"the name {quote_text(item.skill.name)} is taken by {path_by_name[item.skill.name]}"
        file, fix = f"{item.path}/SKILL.md", "rename one of them"
        if mode == "lenient":
            name = _free_name(item.skill, path_by_name)
            path_by_name[name] = item.path
            fix += f"; until then this one is named {quote_text(name)}"
            skill, finding = (
                msgspec.structs.replace(item.skill, name=name),
                SkillFinding(file, None, "duplicate-name", message, fix, "warning"),
            )
        else:
            skill, finding = None, SkillFinding(file, None, "duplicate-name", message, fix, "error")
            logger.warning("skill skipped: %s", finding)
        reports[index] = SkillReport(item.path, item.name, skill, (*item.findings, finding))
    return reports


def _free_name(skill: Skill, used_names: Mapping[str, str]) -> str:
    folder = skill.skill_dir.name
    if is_usable_name(folder) and folder not in used_names:
        return folder
    return next(name for number in count(2) if (name := f"{skill.name}-{number}") not in used_names)


def _merge_skills(merged: dict[str, Skill], reports: Iterable[SkillReport]) -> None:
    for item in reports:
        if item.skill is None:
            continue
        replaced = merged.get(item.skill.name)
        if replaced is not None and replaced.source != item.skill.source:
            logger.info("skill %r in workspace overrides global definition", item.skill.name)
        elif replaced is not None:
            logger.info(
                "skill %r in %s overrides that in %s", replaced.name, item.path, format_path(replaced.skill_dir)
            )
        merged[item.skill.name] = item.skill


def _log_findings(skill_report: SkillReport) -> None:
    for finding in skill_report.findings:
        if finding.severity == "error":
            logger.warning("skill skipped: %s", finding)
        elif finding.rule in ("body-length", BODY_CAP_RULE):
            logger.warning("skill is long: %s", finding)


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
