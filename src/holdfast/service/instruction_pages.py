"""HTTP routes behind the dashboard's instructions pages: agents, manifests, coverage and pending versions."""

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
    """`failing` counts units below the coverage threshold, `waiting` versions that need an approval or a signature."""

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
    """Sorted by id. `enabled` is false if the service runs without instructions."""

    enabled: bool
    agents: tuple[AgentLine, ...] = ()
    more: bool = False


class FailureTold(msgspec.Struct, frozen=True):
    """A probe query that missed; `taken_by` is the unit found instead, null if none was."""

    query: str
    taken_by: str | None


class UnitLine(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of the manifest, its active version, and its coverage."""

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
    """`needs` lists the missing kinds of approval; a quarantined version needs a signature instead."""

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
    page = agents[: request.limit]
    return AgentsTold(True, tuple(_agent_line(library, agent) for agent in page), len(agents) > len(page))


def show_agent(library: Library, request: OneAgent) -> AgentPage:
    agent = known_agent(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    run = library.records.coverage(agent.id)
    return AgentPage(
        agent=_agent_line(library, agent),
        migration_mode=manifest.migration_mode if manifest else None,
        coverage=_coverage_state(run) if run else None,
        units=_unit_lines(library, agent, run) if manifest else (),
        versions=_version_lines(library, manifest) if manifest else (),
        waiting=_pending_lines(library, agent, manifest),
    )


def known_agent(library: Library, agent_id: str) -> Agent:
    """Raises RefusedError if there is none."""
    agent = library.records.agent(agent_id)
    if agent is None:
        raise RefusedError(404, "agent_not_found", "no such agent; GET /api/instructions lists all agents")
    return agent


def _agent_line(library: Library, agent: Agent) -> AgentLine:
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
        failing=sum(not unit.passed for unit in run.units) if run else 0,
        measured_at=maybe_told_time(run.finished_at if run else None),
        waiting=len(_pending_lines(library, agent, manifest)),
    )


def _unit_lines(library: Library, agent: Agent, run: CoverageRun | None) -> tuple[UnitLine, ...]:
    _, instruction_set = library.shelf(agent.id, agent)
    coverage_by_unit = {unit.unit: unit for unit in run.units} if run else {}

    def make_line(entry: Entry) -> UnitLine:
        content = instruction_set.contents.get(entry.name)
        coverage: UnitCoverage | None = coverage_by_unit.get(entry.name)
        line = UnitLine(
            name=entry.name,
            description=entry.description,
            intents=entry.load_triggers.intents,
            guaranteed=entry.guarantee_load,
            first=entry.force_position is not None,
            task_types=entry.required_by_task_types,
            version=content.version if content else None,
            tokens=content.tokens if content else None,
            lifted=entry.name in instruction_set.lifted,
        )
        if coverage is None:
            return line
        return msgspec.structs.replace(
            line,
            coverage_pct=coverage.coverage_pct,
            scaled_pct=coverage.scaled_pct,
            hit_at_10=coverage.hit_at_10,
            passed=coverage.passed,
            failures=tuple(FailureTold(failure.query, failure.taken_by) for failure in coverage.failures),
        )

    return tuple(map(make_line, instruction_set.manifest.body))


def _coverage_state(run: CoverageRun) -> CoverageState:
    return CoverageState(
        measured_at=told_time(run.finished_at),
        kind=run.kind,
        skipped=run.skipped,
        stale=run.stale,
        recert_due=maybe_told_time(run.recert_due),
        model=run.model_id,
    )


def _version_lines(library: Library, newest: Manifest) -> tuple[VersionLine, ...]:
    """Newest first, at most VERSIONS_MAX."""
    manifests: list[Manifest] = []
    current: Manifest | None = newest
    while current is not None and len(manifests) < VERSIONS_MAX:
        manifests.append(current)
        # Times are milliseconds: the manifest in force just before this one was published.
        current = library.records.manifest_at(current.agent_id, current.created_at - 1)
    return tuple(
        VersionLine(
            version=manifest.version,
            published_at=told_time(manifest.created_at),
            published_by=manifest.provenance.published_by,
            superseded_at=maybe_told_time(manifest.superseded_at),
            units=len(manifest.body),
            token_count=manifest.token_count,
            skipped_gate=manifest.provenance.skipped_gate,
            cosigned_by=manifest.provenance.cosigned_by,
        )
        for manifest in manifests
    )


def _pending_lines(library: Library, agent: Agent, manifest: Manifest | None) -> tuple[WaitingLine, ...]:
    approvals = library.records.approvals(agent.id) if manifest else ()

    def make_line(entry: Entry, unit: UnitVersion) -> WaitingLine:
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
        make_line(entry, unit)
        for entry in (manifest.body if manifest else ())
        for unit in _inactive(library.records.versions_of(*owner_of(entry, agent)))
    )


def _inactive(versions: tuple[UnitVersion, ...]) -> tuple[UnitVersion, ...]:
    """Pending versions newer than the active one, and all quarantined versions."""
    active = holding(versions)
    return tuple(
        unit
        for unit in versions
        if unit.status == "quarantined" or (unit.status == "pending" and (active is None or follows(unit, active)))
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
    """A route for admins; without a key only if the service holds nothing but sample instructions.

    `otherwise` is the response if the service runs without instructions.
    """

    async def respond(context: Service, incoming: Asked) -> Answer:
        if incoming.key is None and context.library is not None and not context.keeps_sample_only:
            raise key_required()
        query = convert(incoming, request)
        if context.library is None:
            if otherwise is None:
                raise RefusedError(
                    404, "instructions_disabled", "start the service with `holdfast serve --instructions`"
                )
            return Answer(_encode(otherwise))
        try:
            return Answer(_encode(await asyncio.to_thread(run, context.library, query)))
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
        summary="Agents with their manifests, failing units and pending versions.",
        otherwise=AgentsTold(False),
    ),
    page_route(
        "/api/instructions/{agent_id}",
        show_agent,
        request=OneAgent,
        reply=AgentPage,
        summary="One agent: units with coverage, manifest versions, and versions pending approval.",
    ),
)
