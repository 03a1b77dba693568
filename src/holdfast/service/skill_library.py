"""The skills on this machine: which load, what is wrong with them, and how to mend it."""

import asyncio

import msgspec

from holdfast.service.routes import Nothing, Route, route
from holdfast.service.service import Service
from holdfast.sources.skills.library import read_library
from holdfast.sources.skills.skill import SkillReport

SKILLS_MAX = 1_000


class LibraryFinding(msgspec.Struct, frozen=True):
    """An error keeps the skill from loading."""

    severity: str
    rule: str
    message: str
    mend: str
    line: int | None


class LibrarySkill(msgspec.Struct, frozen=True):
    name: str
    description: str
    source: str | None
    loads: bool
    findings: tuple[LibraryFinding, ...]


class SkillLibraryReply(msgspec.Struct, frozen=True):
    """By path; no more than are listed at once, `skills_total` of them are there."""

    skills: tuple[LibrarySkill, ...]
    skills_total: int


async def list_skills(service: Service, request: Nothing) -> SkillLibraryReply:
    def read() -> SkillLibraryReply:
        reports = read_library(service.skill_roots).reports
        return SkillLibraryReply(tuple(map(_told, reports[:SKILLS_MAX])), len(reports))

    return await asyncio.to_thread(read)


def _told(report: SkillReport) -> LibrarySkill:
    skill = report.skill
    return LibrarySkill(
        name=report.name or report.path.rstrip("/").rpartition("/")[2],
        description=skill.description if skill else "",
        source=skill.source if skill else None,
        loads=report.valid,
        findings=tuple(
            LibraryFinding(one.severity, one.rule, one.message, one.mend, one.line) for one in report.findings
        ),
    )


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/skills",
        list_skills,
        request=Nothing,
        reply=SkillLibraryReply,
        rule="read",
        summary="The skills of this machine's user and of the folder that the service was started in, with findings.",
    ),
)
