"""Folders of skills for tests: written as a person would write them, or as nobody should."""

from pathlib import Path

from holdfast.sources.skills.found import SkillRoot
from holdfast.sources.skills.library import SkillLibrary, read_library
from holdfast.sources.skills.skill import SkillMode, SkillReport, SkillSource

DESCRIPTION = "A test skill. Use it in tests."


def write_skill(root: Path, name: str, front: str | None = None, body: str = "# Steps\n", *, more: str = "") -> Path:
    """The folder of a skill with this front matter; without one, a good one with `more` lines behind it."""
    front = f"name: {name}\ndescription: {DESCRIPTION}\n{more}" if front is None else front
    return write_raw(root, name, f"---\n{front.rstrip()}\n---\n\n{body}".encode())


def write_raw(root: Path, name: str, raw: bytes, *, file: str = "SKILL.md") -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(raw)
    return folder


def library_of(root: Path, mode: SkillMode = "seed", source: SkillSource = "workspace") -> SkillLibrary:
    return read_library((SkillRoot(str(root), source),), mode)


def names_in(root: Path, mode: SkillMode = "seed", source: SkillSource = "workspace") -> list[str]:
    return [skill.name for skill in library_of(root, mode, source).store.list_skills()]


def rules_of(report: SkillReport, severity: str = "error") -> list[str]:
    return [finding.rule for finding in report.findings if finding.severity == severity]
