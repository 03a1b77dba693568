"""HTTP route that lists the skills on this machine, with validation findings and how to fix them."""

import msgspec

from holdfast.service.context import AppContext
from holdfast.service.http.routes import EmptyRequest, Route, copy_fields, json_route
from holdfast.sources.skills.library import read_skill_library
from holdfast.sources.skills.skill import SkillReport

SKILLS_MAX = 1_000


class LibraryFinding(msgspec.Struct, frozen=True):
    """A finding of severity `error` prevents the skill from loading."""

    severity: str
    rule: str
    message: str
    fix: str
    line: int | None


class LibrarySkill(msgspec.Struct, frozen=True):
    name: str
    description: str
    source: str | None
    loads: bool
    findings: tuple[LibraryFinding, ...]


class SkillLibraryResponse(msgspec.Struct, frozen=True):
    """Sorted by path, at most SKILLS_MAX; `skills_total` counts all of them."""

    skills: tuple[LibrarySkill, ...]
    skills_total: int


def list_skill_library(context: AppContext, request: EmptyRequest) -> SkillLibraryResponse:
    """Skills of the user and of the folder the service was started in, with validation findings."""
    reports = read_skill_library(context.skill_roots).reports
    return SkillLibraryResponse(tuple(map(_skill_row, reports[:SKILLS_MAX])), len(reports))


def _skill_row(report: SkillReport) -> LibrarySkill:
    skill = report.skill
    return LibrarySkill(
        name=report.name or report.path.rstrip("/").rpartition("/")[2],
        description=skill.description if skill else "",
        source=skill.source if skill else None,
        loads=report.valid,
        findings=tuple(copy_fields(LibraryFinding, finding) for finding in report.findings),
    )


ROUTES: tuple[Route, ...] = (json_route("GET", "/api/skills", list_skill_library, rule="read"),)
