"""HTTP routes behind the dashboard's instructions pages: agents, manifests, coverage and pending versions."""

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.manifest.approvals import find_active_version, may_replace, missing_approvals
from holdfast.instructions.models import (
    Agent,
    CoverageRun,
    Manifest,
    ManifestEntry,
    UnitCoverage,
    UnitVersion,
    format_optional_time,
    format_time,
)
from holdfast.instructions.recall.snapshot import unit_key
from holdfast.service.api.instructions.routing import SCOPE_DENIED, make_instruction_error
from holdfast.service.api.instructions.schemas import AgentRequest
from holdfast.service.auth.keys import make_key_required_error
from holdfast.service.context import AppContext
from holdfast.service.http.routes import (
    ApiError,
    Route,
    RouteRequest,
    RouteResponse,
    copy_fields,
    decode_request_fields,
    get_handler_types,
    get_summary,
)

VERSIONS_MAX = 20
Request = TypeVar("Request", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class AgentsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 25
    skip: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """`failing` counts units below the coverage threshold, `pending` versions that need an approval or a signature."""

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
    pending: int


class AgentsResponse(msgspec.Struct, frozen=True):
    """Sorted by id. `enabled` is false if the service runs without instructions."""

    enabled: bool
    agents: tuple[AgentRow, ...] = ()
    more: bool = False


class CoverageFailureRow(msgspec.Struct, frozen=True):
    """A probe query that missed; `found_instead` is the unit found instead, null if none was."""

    query: str
    found_instead: str | None


class UnitRow(msgspec.Struct, frozen=True, kw_only=True):
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
    failures: tuple[CoverageFailureRow, ...] = ()


class CoverageState(msgspec.Struct, frozen=True, kw_only=True):
    measured_at: str
    kind: str
    skipped: bool
    stale: bool
    recert_due: str | None
    model: str


class ManifestVersionRow(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    published_at: str
    published_by: str
    superseded_at: str | None
    units: int
    token_count: int
    skipped_gate: bool
    cosigned_by: tuple[str, ...]


class PendingVersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """`needs` lists the missing kinds of approval; a quarantined version needs a signature instead."""

    unit: str
    version: str
    status: str
    authored_by: str
    authored_at: str
    tokens: int
    content: str
    needs: tuple[str, ...]


class AgentResponse(msgspec.Struct, frozen=True, kw_only=True):
    agent: AgentRow
    migration_mode: str | None
    coverage: CoverageState | None
    units: tuple[UnitRow, ...]
    versions: tuple[ManifestVersionRow, ...]
    pending: tuple[PendingVersionRow, ...]


def list_agents(context: InstructionContext, request: AgentsRequest) -> AgentsResponse:
    """Agents with their manifests, failing units and pending versions."""
    agents = context.records.agents()[request.skip : request.skip + request.limit + 1]
    page = agents[: request.limit]
    return AgentsResponse(True, tuple(_agent_line(context, agent) for agent in page), len(agents) > len(page))


def get_agent(context: InstructionContext, request: AgentRequest) -> AgentResponse:
    """One agent: units with coverage, manifest versions, and versions pending approval."""
    agent = require_agent(context, request.agent_id)
    manifest = context.records.manifest(agent.id)
    run = context.records.coverage(agent.id)
    return AgentResponse(
        agent=_agent_line(context, agent),
        migration_mode=manifest.migration_mode if manifest else None,
        coverage=_coverage_state(run) if run else None,
        units=_unit_lines(context, agent, run) if manifest else (),
        versions=_version_lines(context, manifest) if manifest else (),
        pending=_pending_lines(context, agent, manifest),
    )


def require_agent(context: InstructionContext, agent_id: str) -> Agent:
    """Raises ApiError if there is none."""
    agent = context.records.agent(agent_id)
    if agent is None:
        raise ApiError(404, "agent_not_found", "no such agent; GET /api/instructions lists all agents")
    return agent


def _agent_line(context: InstructionContext, agent: Agent) -> AgentRow:
    manifest = context.records.manifest(agent.id)
    run = context.records.coverage(agent.id)
    return AgentRow(
        agent_id=agent.id,
        shortname=agent.shortname,
        role=agent.role,
        sensitive=agent.sensitive,
        manifest_version=manifest.version if manifest else None,
        published_at=format_optional_time(manifest.created_at if manifest else None),
        units=len(manifest.body) if manifest else 0,
        token_count=manifest.token_count if manifest else 0,
        failing=sum(not unit.passed for unit in run.units) if run else 0,
        measured_at=format_optional_time(run.finished_at if run else None),
        pending=len(_pending_lines(context, agent, manifest)),
    )


def _unit_lines(context: InstructionContext, agent: Agent, run: CoverageRun | None) -> tuple[UnitRow, ...]:
    _, instruction_set = context.require_instruction_set(agent.id, agent)
    coverage_by_unit = {unit.unit: unit for unit in run.units} if run else {}

    def make_line(entry: ManifestEntry) -> UnitRow:
        content = instruction_set.contents.get(entry.name)
        coverage: UnitCoverage | None = coverage_by_unit.get(entry.name)
        line = UnitRow(
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
            failures=tuple(CoverageFailureRow(failure.query, failure.found_instead) for failure in coverage.failures),
        )

    return tuple(map(make_line, instruction_set.manifest.body))


def _coverage_state(run: CoverageRun) -> CoverageState:
    measured_at, recert_due = format_time(run.finished_at), format_optional_time(run.recert_due)
    return copy_fields(CoverageState, run, measured_at=measured_at, recert_due=recert_due, model=run.model_id)


def _version_lines(context: InstructionContext, newest: Manifest) -> tuple[ManifestVersionRow, ...]:
    """Newest first, at most VERSIONS_MAX."""
    manifests: list[Manifest] = []
    current: Manifest | None = newest
    while current is not None and len(manifests) < VERSIONS_MAX:
        manifests.append(current)
        # Times are milliseconds: the manifest in force just before this one was published.
        current = context.records.manifest_at(current.agent_id, current.created_at - 1)
    return tuple(
        copy_fields(
            ManifestVersionRow,
            manifest,
            published_at=format_time(manifest.created_at),
            published_by=manifest.provenance.published_by,
            superseded_at=format_optional_time(manifest.superseded_at),
            units=len(manifest.body),
            skipped_gate=manifest.provenance.skipped_gate,
            cosigned_by=manifest.provenance.cosigned_by,
        )
        for manifest in manifests
    )


def _pending_lines(
    context: InstructionContext, agent: Agent, manifest: Manifest | None
) -> tuple[PendingVersionRow, ...]:
    approvals = context.records.approvals(agent.id) if manifest else ()

    def make_line(entry: ManifestEntry, unit: UnitVersion) -> PendingVersionRow:
        return copy_fields(
            PendingVersionRow,
            unit,
            unit=entry.name,
            authored_at=format_time(unit.authored_at),
            tokens=unit.token_count,
            needs=missing_approvals(entry, unit, approvals) if unit.status == "pending" else (),
        )

    return tuple(
        make_line(entry, unit)
        for entry in (manifest.body if manifest else ())
        for unit in _inactive(context.records.list_unit_versions(*unit_key(entry, agent)))
    )


def _inactive(versions: tuple[UnitVersion, ...]) -> tuple[UnitVersion, ...]:
    """Pending versions newer than the active one, and all quarantined versions."""
    active = find_active_version(versions)
    return tuple(
        unit
        for unit in versions
        if unit.status == "quarantined" or (unit.status == "pending" and (active is None or may_replace(unit, active)))
    )


def page_route(
    path: str, run: Callable[[InstructionContext, Request], msgspec.Struct], *, otherwise: msgspec.Struct | None = None
) -> Route:
    """A route for admins; without a key only if the service holds nothing but sample instructions.

    `otherwise` is the response if the service runs without instructions.
    """
    request, reply = get_handler_types(run)

    async def respond(context: AppContext, incoming: RouteRequest) -> RouteResponse:
        if incoming.key is None and context.instructions is not None and not context.has_sample_only:
            raise make_key_required_error()
        query = decode_request_fields(incoming, request)
        if context.instructions is None:
            if otherwise is None:
                raise ApiError(404, "instructions_disabled", "start the service with `holdfast serve --instructions`")
            return RouteResponse(_encode(otherwise))
        try:
            return RouteResponse(_encode(await asyncio.to_thread(run, context.instructions, query)))
        except InstructionError as error:
            raise make_instruction_error(error) from error

    error_statuses = (404,) if otherwise is None else ()
    return Route(
        "GET",
        path,
        "admin",
        get_summary(run),
        request,
        reply,
        respond,
        error_statuses=error_statuses,
        denied_code=SCOPE_DENIED,
    )


ROUTES: tuple[Route, ...] = (
    page_route("/api/instructions", list_agents, otherwise=AgentsResponse(False)),
    page_route("/api/instructions/{agent_id}", get_agent),
)
