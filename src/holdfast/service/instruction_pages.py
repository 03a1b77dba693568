"""What a page shows of the instructions of agents: who has which manifest, what is found, what waits for people."""

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library
from holdfast.instructions.shelves import owner_of
from holdfast.instructions.times import maybe_told_time, told_time
from holdfast.instructions.values import Agent, CoverageRun, Entry, Manifest, UnitCoverage, UnitVersion
from holdfast.instructions.waiting import follows, holding, lacking_kinds
from holdfast.service.access import key_required
from holdfast.service.failures import RefusedError
from holdfast.service.instruction_routes import DENIED, refused
from holdfast.service.instruction_values import OneAgent
from holdfast.service.routes import Answer, Asked, Route, convert
from holdfast.service.service import Service

VERSIONS_MAX = 20

Request = TypeVar("Request", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


class AgentsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 25
    skip: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class AgentLine(msgspec.Struct, frozen=True, kw_only=True):
    """`failing` units are found by too few; `waiting` versions by nobody, until somebody approves or signs them."""

    agent_id: str
    shortname: str | None
    role: str
    sensitive: bool
    manifest_version: str | None
    published_at: str | None
    units: int
    token_count: int
    failing: int
    measured_at: str | None
    waiting: int


class AgentsTold(msgspec.Struct, frozen=True):
    """By id. `enabled` is false where the service keeps no instructions."""

    enabled: bool
    agents: tuple[AgentLine, ...] = ()
    more: bool = False


class FailureTold(msgspec.Struct, frozen=True):
    """Null where nothing at all was found that fits."""

    query: str
    taken_by: str | None


class UnitLine(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as the manifest lists it, the version that is handed out, and how well it is found."""

    name: str
    description: str
    intents: tuple[str, ...]
    guaranteed: bool
    first: bool
    task_types: tuple[str, ...]
    version: str | None
    tokens: int | None
    lifted: bool
    coverage_pct: float | None = None
    scaled_pct: float | None = None
    hit_at_10: float | None = None
    passed: bool | None = None
    failures: tuple[FailureTold, ...] = ()


class CoverageState(msgspec.Struct, frozen=True, kw_only=True):
    measured_at: str
    kind: str
    skipped: bool
    stale: bool
    recert_due: str | None
    model: str


class VersionLine(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    published_at: str
    published_by: str
    superseded_at: str | None
    units: int
    token_count: int
    skipped_gate: bool
    cosigned_by: tuple[str, ...]


class WaitingLine(msgspec.Struct, frozen=True, kw_only=True):
    """`needs` are the kinds of approval that nobody has given; a version in quarantine needs a signature."""

    unit: str
    version: str
    status: str
    authored_by: str
    authored_at: str
    tokens: int
    content: str
    needs: tuple[str, ...]


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    agent: AgentLine
    migration_mode: str | None
    coverage: CoverageState | None
    units: tuple[UnitLine, ...]
    versions: tuple[VersionLine, ...]
    waiting: tuple[WaitingLine, ...]


def list_agents(library: Library, request: AgentsQuery) -> AgentsTold:
    agents = library.records.agents()[request.skip : request.skip + request.limit + 1]
    shown = agents[: request.limit]
    return AgentsTold(True, tuple(_line(library, one) for one in shown), len(agents) > len(shown))


def show_agent(library: Library, request: OneAgent) -> AgentPage:
    agent = known_agent(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    run = library.records.coverage(agent.id)
    return AgentPage(
        agent=_line(library, agent),
        migration_mode=manifest.migration_mode if manifest else None,
        coverage=_state(run) if run else None,
        units=_units(library, agent, run) if manifest else (),
        versions=_versions(library, manifest) if manifest else (),
        waiting=_waiting(library, agent, manifest),
    )


def known_agent(library: Library, said: str) -> Agent:
    """Raises RefusedError."""
    agent = library.records.agent(said)
    if agent is None:
        raise RefusedError(404, "agent_not_found", "there is no such agent; the list of all has no line for it")
    return agent


def _line(library: Library, agent: Agent) -> AgentLine:
    manifest = library.records.manifest(agent.id)
    run = library.records.coverage(agent.id)
    return AgentLine(
        agent_id=agent.id,
        shortname=agent.shortname,
        role=agent.role,
        sensitive=agent.sensitive,
        manifest_version=manifest.version if manifest else None,
        published_at=maybe_told_time(manifest.created_at if manifest else None),
        units=len(manifest.body) if manifest else 0,
        token_count=manifest.token_count if manifest else 0,
        failing=sum(not one.passed for one in run.units) if run else 0,
        measured_at=maybe_told_time(run.finished_at if run else None),
        waiting=len(_waiting(library, agent, manifest)),
    )


def _units(library: Library, agent: Agent, run: CoverageRun | None) -> tuple[UnitLine, ...]:
    _, shelf = library.shelf(agent.id, agent)
    measured = {one.unit: one for one in run.units} if run else {}

    def told(entry: Entry) -> UnitLine:
        content = shelf.contents.get(entry.name)
        found: UnitCoverage | None = measured.get(entry.name)
        line = UnitLine(
            name=entry.name,
            description=entry.description,
            intents=entry.load_triggers.intents,
            guaranteed=entry.guarantee_load,
            first=entry.force_position is not None,
            task_types=entry.required_by_task_types,
            version=content.version if content else None,
            tokens=content.tokens if content else None,
            lifted=entry.name in shelf.lifted,
        )
        if found is None:
            return line
        return msgspec.structs.replace(
            line,
            coverage_pct=found.coverage_pct,
            scaled_pct=found.scaled_pct,
            hit_at_10=found.hit_at_10,
            passed=found.passed,
            failures=tuple(FailureTold(one.query, one.taken_by) for one in found.failures),
        )

    return tuple(map(told, shelf.manifest.body))


def _state(run: CoverageRun) -> CoverageState:
    return CoverageState(
        measured_at=told_time(run.finished_at),
        kind=run.kind,
        skipped=run.skipped,
        stale=run.stale,
        recert_due=maybe_told_time(run.recert_due),
        model=run.model_id,
    )


def _versions(library: Library, newest: Manifest) -> tuple[VersionLine, ...]:
    """The newest first, no more than are read at once."""
    found: list[Manifest] = []
    one: Manifest | None = newest
    while one is not None and len(found) < VERSIONS_MAX:
        found.append(one)
        one = library.records.manifest_at(one.agent_id, one.created_at - 1)
    return tuple(
        VersionLine(
            version=one.version,
            published_at=told_time(one.created_at),
            published_by=one.provenance.published_by,
            superseded_at=maybe_told_time(one.superseded_at),
            units=len(one.body),
            token_count=one.token_count,
            skipped_gate=one.provenance.skipped_gate,
            cosigned_by=one.provenance.cosigned_by,
        )
        for one in found
    )


def _waiting(library: Library, agent: Agent, manifest: Manifest | None) -> tuple[WaitingLine, ...]:
    approvals = library.records.approvals(agent.id) if manifest else ()

    def told(entry: Entry, unit: UnitVersion) -> WaitingLine:
        return WaitingLine(
            unit=entry.name,
            version=unit.version,
            status=unit.status,
            authored_by=unit.authored_by,
            authored_at=told_time(unit.authored_at),
            tokens=unit.token_count,
            content=unit.content,
            needs=lacking_kinds(entry, unit, approvals) if unit.status == "pending" else (),
        )

    return tuple(
        told(entry, unit)
        for entry in (manifest.body if manifest else ())
        for unit in _not_told(library.records.versions_of(*owner_of(entry, agent)))
    )


def _not_told(versions: tuple[UnitVersion, ...]) -> tuple[UnitVersion, ...]:
    """What is older than the version that is told waits for nothing any more, unless nobody known has signed it."""
    held = holding(versions)
    return tuple(
        unit
        for unit in versions
        if unit.status == "quarantined" or (unit.status == "pending" and (held is None or follows(unit, held)))
    )


def page_route(
    path: str,
    run: Callable[[Library, Request], msgspec.Struct],
    *,
    request: type[Request],
    reply: type[msgspec.Struct],
    summary: str,
    otherwise: msgspec.Struct | None = None,
) -> Route:
    """For admins with a key, and without one where nothing but a sample is kept.

    `otherwise` is told where the service keeps no instructions.
    """

    async def respond(service: Service, asked: Asked) -> Answer:
        if asked.key is None and service.library is not None and not service.keeps_sample_only:
            raise key_required()
        said = convert(asked, request)
        if service.library is None:
            if otherwise is None:
                raise RefusedError(
                    404, "instructions_disabled", "start the service with `holdfast serve --instructions`"
                )
            return Answer(_encode(otherwise))
        try:
            return Answer(_encode(await asyncio.to_thread(run, service.library, said)))
        except InstructionError as error:
            raise refused(error) from error

    refusals = (404,) if otherwise is None else ()
    return Route("GET", path, "admin", summary, request, reply, respond, refusals=refusals, denied=DENIED)


ROUTES: tuple[Route, ...] = (
    page_route(
        "/api/instructions",
        list_agents,
        request=AgentsQuery,
        reply=AgentsTold,
        summary="Agents with their manifests, what fails, and what waits for people.",
        otherwise=AgentsTold(False),
    ),
    page_route(
        "/api/instructions/{agent_id}",
        show_agent,
        request=OneAgent,
        reply=AgentPage,
        summary="One agent: units with coverage, versions of the manifest, what waits for approval.",
    ),
)
