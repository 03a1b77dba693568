"""Which skills there are in all roots together, read once and looked at again only where a file has changed."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

import msgspec

from holdfast.errors import SkillValidationError, UserError
from holdfast.sources.files import Stamp
from holdfast.sources.home import holdfast_home
from holdfast.sources.skills.found import (
    FoundFile,
    SkillLimits,
    SkillRoot,
    find_skill,
    find_skills,
)
from holdfast.sources.skills.frontmatter import Fault, shown
from holdfast.sources.skills.reading import read_skill, report
from holdfast.sources.skills.rules import usable_name
from holdfast.sources.skills.skill import Skill, SkillFinding, SkillMode, SkillReport, SkillSource
from holdfast.sources.skills.store import SkillStore
from holdfast.sources.text import path_text

logger = logging.getLogger(__name__)

OWN_FOLDER = ".holdfast/skills"
OPTIONAL_FOLDERS = (".agents/skills", ".claude/skills", ".metis/skills")
"""Where other programs keep theirs, below a home or a workspace; read only if they are asked for."""


class _Seen(msgspec.Struct, frozen=True):
    stamp: Stamp
    report: SkillReport


class SkillLibrary(msgspec.Struct, frozen=True):
    """What one look at the roots has found. `reports` has every folder that was taken for a skill, by path."""

    roots: tuple[SkillRoot, ...]
    mode: SkillMode
    store: SkillStore
    reports: tuple[SkillReport, ...] = ()
    limits: SkillLimits = SkillLimits()
    seen: dict[SkillRoot, dict[str, _Seen]] = {}

    def reloaded(self) -> "SkillLibrary":
        """The same roots now: a file is read again if its time or its size is another."""
        return read_library(self.roots, self.mode, limits=self.limits, before=self)


def default_skills_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own skills: `skills` in HOLDFAST_HOME, which is `~/.holdfast` unless it is set."""
    return holdfast_home(os.environ if environ is None else environ) / "skills"


def skill_roots(
    global_dir: Path | str | None, workspace: Path | str | None, *, home: Path | None = None, also: Sequence[str] = ()
) -> tuple[SkillRoot, ...]:
    """The folders to read, the one that has the last word last; `also` names some of `OPTIONAL_FOLDERS`."""
    unknown = [folder for folder in also if folder not in OPTIONAL_FOLDERS]
    if unknown:
        raise UserError(f"unknown folder of skills {unknown[0]!r}; known are {', '.join(OPTIONAL_FOLDERS)}")
    roots: list[SkillRoot] = []
    if home is not None:
        roots += (SkillRoot(str(home / folder), "global") for folder in reversed(also))
    if global_dir is not None:
        roots.append(SkillRoot(str(global_dir), "global"))
    if workspace is not None:
        folders = (*reversed(also), OWN_FOLDER)
        roots += (SkillRoot(os.path.join(workspace, folder), "workspace", str(workspace)) for folder in folders)
    return tuple(roots)


def load_skills(
    *, global_dir: Path | str | None, workspace_dir: Path | str | None, mode: SkillMode = "seed"
) -> SkillStore:
    """The skills of two roots, a workspace's in place of a global one of the same name; a missing root has none.

    Nothing in a root can make this fail: what cannot be used is logged and left out.
    """
    roots = []
    if global_dir is not None:
        roots.append(SkillRoot(os.fspath(global_dir), "global"))
    if workspace_dir is not None:
        roots.append(SkillRoot(os.fspath(workspace_dir), "workspace"))
    return read_library(roots, mode).store


def load_skill(skill_dir: Path | str, *, source: SkillSource = "workspace", mode: SkillMode = "seed") -> Skill:
    """The one skill that a folder is; `SkillValidationError` says all that keeps it from being one."""
    told = check_skill(skill_dir, source=source, mode=mode)
    if told.skill is None:
        raise SkillValidationError([str(one) for one in told.findings if one.severity == "error"])
    return told.skill


def check_skill(skill_dir: Path | str, *, source: SkillSource = "workspace", mode: SkillMode = "strict") -> SkillReport:
    """What is right and wrong with the one skill that a folder should be."""
    folder = os.path.abspath(skill_dir)
    found = find_skill(folder, source)
    if found is not None:
        return _report(found, source, mode)
    if not os.path.lexists(folder):
        fault = Fault("not-found", "the folder does not exist", "check its path")
    elif not os.path.isdir(folder):
        fault = Fault("not-a-folder", "it is not a folder", "a skill is a folder with a SKILL.md in it")
    else:
        fault = Fault("missing-file", "there is no SKILL.md in the folder", "add one")
    return report(os.path.join(folder, "SKILL.md"), (fault,), mode)


def library_at(folder: Path | str, mode: SkillMode = "seed") -> SkillLibrary:
    """What a folder holds that is one skill or a root of skills; where it holds none, the report says what it lacks."""
    told = check_skill(folder, mode=mode)
    if any(finding.rule == "missing-file" for finding in told.findings):
        root = read_library((SkillRoot(os.fspath(folder), "workspace"),), mode)
        if root.reports:
            return root
    return SkillLibrary((), mode, SkillStore([told.skill] if told.skill else (), told.findings), (told,))


def read_library(
    roots: Iterable[SkillRoot],
    mode: SkillMode = "seed",
    *,
    limits: SkillLimits | None = None,
    before: SkillLibrary | None = None,
) -> SkillLibrary:
    """What the roots hold, the last one winning where names are the same. `before` spares what has not changed."""
    limits = SkillLimits() if limits is None else limits
    roots = tuple(roots)
    known = before.seen if before is not None and before.mode == mode and before.limits == limits else {}
    seen: dict[SkillRoot, dict[str, _Seen]] = {root: {} for root in roots}
    reports: list[SkillReport] = []
    merged: dict[str, Skill] = {}
    for root in roots:
        own: list[SkillReport] = []
        unchanged = known.get(root, {})
        for found in find_skills(root, {file: one.stamp for file, one in unchanged.items()}, limits):
            if found.raw is None and not found.faults:
                told = unchanged[found.file].report
            else:
                told = _report(found, root.source, mode)
                _log(told)
            if found.stamp is not None:
                seen[root][found.file] = _Seen(found.stamp, told)
            own.append(told)
        own = _each_name_once(own, mode)
        reports += own
        _merge(merged, own)
    if before is not None and before.roots == roots and before.reports == tuple(reports):
        # The very same store, with what it has prepared for searches.
        return msgspec.structs.replace(before, seen=seen)
    findings = (finding for one in reports for finding in one.findings)
    return SkillLibrary(roots, mode, SkillStore(merged.values(), findings), tuple(reports), limits, seen)


def _report(found: FoundFile, source: SkillSource, mode: SkillMode) -> SkillReport:
    if found.raw is None:
        return report(found.file, found.faults, mode)
    return read_skill(found.raw, found.file, source, mode, faults=found.faults)


def _each_name_once(reports: list[SkillReport], mode: SkillMode) -> list[SkillReport]:
    """By path; of two skills in one root with one name, the first by path keeps it.

    A lenient reader calls the other by the name of its folder, or by the next number behind its own if that is taken.
    """
    reports.sort(key=lambda one: one.path)
    first: dict[str, str] = {}
    twice = [
        index
        for index, one in enumerate(reports)
        if one.skill is not None and first.setdefault(one.skill.name, one.path) != one.path
    ]
    for index in twice:
        one = reports[index]
        assert one.skill is not None
        what = f"the name {shown(one.skill.name)} is taken by {first[one.skill.name]}"
        file, mend = f"{one.path}/SKILL.md", "rename one of them"
        if mode == "lenient":
            name = _free_name(one.skill, first)
            first[name] = one.path
            mend += f"; until then this one is called {shown(name)}"
            skill, finding = (
                msgspec.structs.replace(one.skill, name=name),
                SkillFinding(file, None, "duplicate-name", what, mend, "warning"),
            )
        else:
            skill, finding = None, SkillFinding(file, None, "duplicate-name", what, mend, "error")
            logger.warning("skill skipped: %s", finding)
        reports[index] = SkillReport(one.path, one.name, skill, (*one.findings, finding))
    return reports


def _free_name(skill: Skill, taken: Mapping[str, str]) -> str:
    folder = skill.skill_dir.name
    if usable_name(folder) and folder not in taken:
        return folder
    return next(name for number in count(2) if (name := f"{skill.name}-{number}") not in taken)


def _merge(merged: dict[str, Skill], reports: Iterable[SkillReport]) -> None:
    for one in reports:
        if one.skill is None:
            continue
        other = merged.get(one.skill.name)
        if other is not None and other.source != one.skill.source:
            logger.info("skill %r in workspace overrides global definition", one.skill.name)
        elif other is not None:
            logger.info("skill %r in %s overrides that in %s", other.name, one.path, path_text(other.skill_dir))
        merged[one.skill.name] = one.skill


def _log(told: SkillReport) -> None:
    for finding in told.findings:
        if finding.severity == "error":
            logger.warning("skill skipped: %s", finding)
        elif finding.rule == "body-length":
            logger.warning("skill is long: %s", finding)
