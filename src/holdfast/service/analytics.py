"""HTTP routes for cost, savings, cache effectiveness, breaks and reliability."""

import asyncio
import datetime
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.catalog.rows import Model
from holdfast.errors import UserError
from holdfast.ledger import figures
from holdfast.ledger.figures import size_limits
from holdfast.ledger.groups import GroupBy, Narrowed
from holdfast.ledger.money import NAME_CHARACTERS_MAX
from holdfast.ledger.tables import Scope
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.hindsight import Regret, Rivals, regret_of, rival_costs
from holdfast.service.service import Service
from holdfast.service.sums import (
    BreakRow,
    CostRow,
    EffectRow,
    SkillRow,
    break_rows,
    cost_rows,
    effect_rows,
    named_keys,
    percentile,
    repriced,
    skills_by_name,
    usd,
)
from holdfast.service.times import Moment, Window, moment, span
from holdfast.service.turns import Turn, turn_of

BASELINE = "anthropic:claude-sonnet-4-6"
LISTED_MAX = 500
# Bounds the offset that the store has to skip over.
SKIPPED_MAX = 1_000_000


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Common part of every response: its time window, and the version of the current prices."""

    window: Window
    current_pricing_version: str


class InWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    start: Moment | None = None
    end: Moment | None = None


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
KeyId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class CostRequest(InWindow, frozen=True):
    group_by: GroupBy = "model"
    model: str | None = None
    provider: str | None = None
    session: str | None = None
    gateway_key: KeyId | None = None
    user: Name | None = None
    team: Name | None = None
    include_workers: bool = True


class CostReply(Told, frozen=True, kw_only=True):
    data: tuple[CostRow, ...] | CostRow


class EffectReply(Told, frozen=True, kw_only=True):
    data: tuple[EffectRow, ...]


class BreaksReply(Told, frozen=True, kw_only=True):
    data: tuple[BreakRow, ...]


class SkillsReply(Told, frozen=True, kw_only=True):
    data: tuple[SkillRow, ...]


class ErrorRow(msgspec.Struct, frozen=True):
    error_class: str
    count: int


class LatencyRow(msgspec.Struct, frozen=True):
    model: str
    p50: int
    p95: int
    sample_size: int


class Reliability(msgspec.Struct, frozen=True):
    errors_by_class: tuple[ErrorRow, ...]
    latency_ms_by_model: tuple[LatencyRow, ...]


class ReliabilityReply(Told, frozen=True, kw_only=True):
    data: Reliability


class SessionsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 25
    order: Literal["cost", "recency"] = "cost"
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


class SessionCost(msgspec.Struct, frozen=True):
    id: str
    name: str | None
    workspace_path: str | None
    active_model: str
    cost_usd: float
    turn_count: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


class SessionsReply(Told, frozen=True, kw_only=True):
    data: tuple[SessionCost, ...]


class OneTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    turn_id: str


class TurnReply(Told, frozen=True, kw_only=True):
    data: Turn


class SavingsRequest(InWindow, frozen=True):
    """`rivals` replays the newest sessions under other tools' caching policies, which takes a while."""

    baseline: str = BASELINE
    rivals: bool = False


class Savings(msgspec.Struct, frozen=True):
    """Savings against a baseline model at today's prices, and against no cache at the prices paid."""

    baseline_model: str
    actual_repriced_usd: float
    baseline_repriced_usd: float
    savings_usd: float
    savings_pct: float | None
    actual_stamped_usd: float
    rows_total: int
    rows_missing_from_price_table: int
    uncached_usd: float
    saved_by_caching_usd: float
    rivals: Rivals | None


class SavingsReply(Told, frozen=True, kw_only=True):
    data: Savings


class RegretReply(Told, frozen=True, kw_only=True):
    data: Regret


Result = TypeVar("Result")


async def _query_window(context: Service, request: InWindow, make: Callable[[Scope], Result]) -> tuple[Window, Result]:
    """Runs `make` for the requested window, in a thread because it queries the store."""
    within = span(request.start, request.end, now=context.clock())
    scope = Scope(since=within.start, until=within.end, simulated=context.simulated)
    return within.told, await asyncio.to_thread(make, scope)


async def cost(context: Service, request: CostRequest) -> CostReply:
    filters = Narrowed(
        model=request.model,
        provider=request.provider,
        session=request.session,
        gateway_key=request.gateway_key,
        user=request.user,
        team=request.team,
        workers=request.include_workers,
    )

    def make(scope: Scope) -> tuple[CostRow, ...]:
        rows = cost_rows(request.group_by, context.log.figures().groups(request.group_by, scope, filters))
        return named_keys(rows, context.records.key) if request.group_by == "gateway_key" else rows

    window, rows = await _query_window(context, request, make)
    data = rows[0] if request.group_by == "none" else rows
    return CostReply(window=window, current_pricing_version=context.pricing_version, data=data)


async def cache_effectiveness(context: Service, request: InWindow) -> EffectReply:
    window, rows = await _query_window(
        context, request, lambda scope: effect_rows(context.log.figures().groups("model", scope))
    )
    return EffectReply(window=window, current_pricing_version=context.pricing_version, data=rows)


async def breaks(context: Service, request: InWindow) -> BreaksReply:
    window, rows = await _query_window(context, request, lambda scope: break_rows(context.log.tables().verdicts(scope)))
    return BreaksReply(window=window, current_pricing_version=context.pricing_version, data=rows)


async def skills(context: Service, request: InWindow) -> SkillsReply:
    window, rows = await _query_window(
        context, request, lambda scope: skills_by_name(context.log.figures().skill_loads(scope))
    )
    return SkillsReply(window=window, current_pricing_version=context.pricing_version, data=rows)


async def reliability(context: Service, request: InWindow) -> ReliabilityReply:
    def make(scope: Scope) -> Reliability:
        figures = context.log.figures()
        failures, latencies = figures.failures(scope), figures.latencies(scope)
        return Reliability(
            tuple(ErrorRow(kind, count) for kind, count in sorted(failures.items(), key=lambda row: (-row[1], row[0]))),
            tuple(
                LatencyRow(model, percentile(counts, 50), percentile(counts, 95), sum(counts.values()))
                for model, counts in sorted(latencies.items())
            ),
        )

    window, reliability = await _query_window(context, request, make)
    return ReliabilityReply(window=window, current_pricing_version=context.pricing_version, data=reliability)


async def sessions(context: Service, request: SessionsRequest) -> SessionsReply:
    def make() -> tuple[SessionCost, ...]:
        page = context.log.figures().session_costs(
            order=request.order, limit=request.limit, skip=request.skip, simulated=context.simulated
        )
        return tuple(map(_session_cost, page))

    costs = await asyncio.to_thread(make)
    everything = Window(None, None)
    return SessionsReply(window=everything, current_pricing_version=context.pricing_version, data=costs)


def _session_cost(session: figures.SessionCost) -> SessionCost:
    row = session.row
    return SessionCost(
        id=row.id,
        name=row.name,
        workspace_path=session.workspace_path,
        active_model=session.model,
        cost_usd=usd(session.spent_usd),
        turn_count=session.turns,
        created_at=moment(row.started_at),
        updated_at=moment(row.last_event_at),
    )


async def turn(context: Service, request: OneTurn) -> TurnReply:
    events = await asyncio.to_thread(lambda: context.log.figures().turn(request.turn_id))
    if not events:
        raise not_found("turn", request.turn_id)
    details = turn_of(request.turn_id, events[0].session_id, events)
    everything = Window(None, None)
    return TurnReply(window=everything, current_pricing_version=context.pricing_version, data=details)


async def savings(context: Service, request: SavingsRequest) -> SavingsReply:
    baseline = _baseline(context, request.baseline)

    def make(scope: Scope) -> Savings:
        # Charges outside of calls, such as cache storage, are on both sides, as in the CLI report.
        totals = context.log.tables().totals(scope)
        sized = context.log.figures().sized(size_limits(context.models), scope)
        repriced_usd = repriced(sized, baseline, context.models, at=context.clock())
        saved = repriced_usd.baseline_usd - repriced_usd.actual_usd
        return Savings(
            baseline_model=baseline.id,
            actual_repriced_usd=usd(repriced_usd.actual_usd),
            baseline_repriced_usd=usd(repriced_usd.baseline_usd),
            savings_usd=usd(saved),
            savings_pct=round(float(saved / repriced_usd.baseline_usd * 100), 4) if repriced_usd.baseline_usd else None,
            actual_stamped_usd=usd(totals.spent_usd),
            rows_total=totals.calls,
            rows_missing_from_price_table=repriced_usd.missing,
            uncached_usd=usd(totals.uncached_usd),
            saved_by_caching_usd=usd(totals.saved_usd),
            rivals=rival_costs(context.log, context.models, scope) if request.rivals else None,
        )

    window, result = await _query_window(context, request, make)
    return SavingsReply(window=window, current_pricing_version=context.pricing_version, data=result)


def _baseline(context: Service, name: str) -> Model:
    try:
        row = find_model(name if ":" in name else f"anthropic:{name}", context.models)
    except UserError as error:
        raise RefusedError(400, "unknown_baseline_model", str(error)) from error
    if not row.prices:
        raise RefusedError(400, "unknown_baseline_model", f"the catalog has no price for {row.id!a}")
    return row


async def regret(context: Service, request: InWindow) -> RegretReply:
    window, result = await _query_window(context, request, lambda scope: regret_of(context.log, context.models, scope))
    return RegretReply(window=window, current_pricing_version=context.pricing_version, data=result)
