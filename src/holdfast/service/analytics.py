"""What was spent, saved and lost, over HTTP."""

import asyncio
import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Literal, TypeVar

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.catalog.rows import Model
from holdfast.errors import UserError
from holdfast.ledger.figures import CallFigure, ExtraFigure, SessionFigures
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.hindsight import Regret, Rivals, regret_of, rival_costs
from holdfast.service.service import Service
from holdfast.service.sums import (
    BreakRow,
    CostRow,
    EffectRow,
    GroupBy,
    SkillRow,
    breaks_by_cause,
    costs_by,
    effects_by_model,
    percentile,
    repriced,
    skills_by_name,
    usd,
)
from holdfast.service.times import Moment, Span, Window, moment, span
from holdfast.service.turns import Turn, turn_of

BASELINE = "anthropic:claude-sonnet-4-6"
LISTED_MAX = 500
SKIPPED_MAX = 1_000_000


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What stands around every answer: the time it is of, and the prices that hold now."""

    window: Window
    current_pricing_version: str


class InWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    start: Moment | None = None
    end: Moment | None = None


class CostRequest(InWindow, frozen=True):
    group_by: GroupBy = "model"
    model: str | None = None
    provider: str | None = None
    session: str | None = None
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
    """`rivals` plays the newest sessions again under the plans of others, which takes a while."""

    baseline: str = BASELINE
    rivals: bool = False


class Savings(msgspec.Struct, frozen=True):
    """Against a baseline model at the prices of today, and against the same calls without a cache as they were paid."""

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


Made = TypeVar("Made")


async def _over(
    service: Service, asked: InWindow, make: Callable[[tuple[SessionFigures, ...], Span], Made]
) -> tuple[Window, Made]:
    """What is made of the sessions that a window may hold calls of; in a thread, because the log is read."""
    within = span(asked.start, asked.end, now=service.clock())
    sessions = await asyncio.to_thread(lambda: tuple(service.figures.sessions(since=within.start)))
    return within.told, await asyncio.to_thread(make, sessions, within)


def _calls(sessions: tuple[SessionFigures, ...], within: Span) -> list[CallFigure]:
    return [call for one in sessions for call in one.calls if within.holds(call.at)]


def _extras(sessions: tuple[SessionFigures, ...], within: Span) -> list[ExtraFigure]:
    return [extra for one in sessions for extra in one.extras if within.holds(extra.at)]


async def cost(service: Service, request: CostRequest) -> CostReply:
    def wanted(one: CallFigure | ExtraFigure) -> bool:
        return (
            request.model in (None, one.model)
            and request.provider in (None, one.model.partition(":")[0])
            and request.session in (None, one.session_id)
            and (request.include_workers or one.parent_session_id is None)
        )

    def make(sessions: tuple[SessionFigures, ...], within: Span) -> tuple[CostRow, ...]:
        calls, extras = _calls(sessions, within), _extras(sessions, within)
        return costs_by(request.group_by, filter(wanted, calls), filter(wanted, extras))

    window, rows = await _over(service, request, make)
    told = rows[0] if request.group_by == "none" else rows
    return CostReply(window=window, current_pricing_version=service.pricing_version, data=told)


async def cache_effectiveness(service: Service, request: InWindow) -> EffectReply:
    window, rows = await _over(service, request, lambda some, within: effects_by_model(_calls(some, within)))
    return EffectReply(window=window, current_pricing_version=service.pricing_version, data=rows)


async def breaks(service: Service, request: InWindow) -> BreaksReply:
    window, rows = await _over(service, request, lambda some, within: breaks_by_cause(_calls(some, within)))
    return BreaksReply(window=window, current_pricing_version=service.pricing_version, data=rows)


async def skills(service: Service, request: InWindow) -> SkillsReply:
    def make(sessions: tuple[SessionFigures, ...], within: Span) -> tuple[SkillRow, ...]:
        return skills_by_name([load for one in sessions for load in one.skills if within.holds(load.at)])

    window, rows = await _over(service, request, make)
    return SkillsReply(window=window, current_pricing_version=service.pricing_version, data=rows)


async def reliability(service: Service, request: InWindow) -> ReliabilityReply:
    def make(sessions: tuple[SessionFigures, ...], within: Span) -> Reliability:
        failures: dict[str, int] = {}
        for one in sessions:
            for failed in one.failures:
                if within.holds(failed.at):
                    failures[failed.error_class] = failures.get(failed.error_class, 0) + 1
        waits: dict[str, list[int]] = {}
        for call in _calls(sessions, within):
            waits.setdefault(call.model, []).append(call.latency_ms)
        return Reliability(
            tuple(ErrorRow(kind, count) for kind, count in sorted(failures.items(), key=lambda row: (-row[1], row[0]))),
            tuple(
                LatencyRow(model, percentile(some, 0.5), percentile(some, 0.95), len(some))
                for model, some in sorted(waits.items())
            ),
        )

    window, found = await _over(service, request, make)
    return ReliabilityReply(window=window, current_pricing_version=service.pricing_version, data=found)


async def sessions(service: Service, request: SessionsRequest) -> SessionsReply:
    def make() -> tuple[SessionCost, ...]:
        rows = [_session_cost(one) for one in service.figures.sessions()]
        if request.order == "cost":
            rows.sort(key=lambda row: (-row.cost_usd, row.id))
        return tuple(rows[request.skip : request.skip + request.limit])

    found = await asyncio.to_thread(make)
    everything = Window(None, None)
    return SessionsReply(window=everything, current_pricing_version=service.pricing_version, data=found)


def _session_cost(one: SessionFigures) -> SessionCost:
    row = one.row
    return SessionCost(
        id=row.id,
        name=row.name,
        workspace_path=one.workspace_path,
        active_model=one.calls[-1].model if one.calls else row.model,
        cost_usd=usd(one.cost_usd),
        turn_count=one.turn_count,
        created_at=moment(row.started_at),
        updated_at=moment(row.last_event_at),
    )


async def turn(service: Service, request: OneTurn) -> TurnReply:
    def make() -> Turn | None:
        for one in service.figures.sessions():
            if request.turn_id in one.turn_ids:
                return turn_of(request.turn_id, one.row.id, tuple(service.log.read(one.row.id)))
        return None

    found = await asyncio.to_thread(make)
    if found is None:
        raise not_found("turn", request.turn_id)
    everything = Window(None, None)
    return TurnReply(window=everything, current_pricing_version=service.pricing_version, data=found)


async def savings(service: Service, request: SavingsRequest) -> SavingsReply:
    baseline = _baseline(service, request.baseline)

    def make(some: tuple[SessionFigures, ...], within: Span) -> Savings:
        calls, extras = _calls(some, within), _extras(some, within)
        again = repriced(calls, baseline, service.models, at=service.clock())
        beside = sum((extra.cost_usd for extra in extras), Decimal(0))
        paid = sum((call.cost_usd for call in calls), beside)
        # What was paid beside the calls stands on both sides, as in the report of the command line.
        uncached = sum((call.uncached_usd for call in calls), beside)
        saved = again.baseline_usd - again.actual_usd
        return Savings(
            baseline_model=baseline.id,
            actual_repriced_usd=usd(again.actual_usd),
            baseline_repriced_usd=usd(again.baseline_usd),
            savings_usd=usd(saved),
            savings_pct=round(float(saved / again.baseline_usd * 100), 4) if again.baseline_usd else None,
            actual_stamped_usd=usd(paid),
            rows_total=len(calls),
            rows_missing_from_price_table=again.missing,
            uncached_usd=usd(uncached),
            saved_by_caching_usd=usd(uncached - paid),
            rivals=rival_costs(some, service.log, service.models, within) if request.rivals else None,
        )

    window, found = await _over(service, request, make)
    return SavingsReply(window=window, current_pricing_version=service.pricing_version, data=found)


def _baseline(service: Service, name: str) -> Model:
    try:
        found = find_model(name if ":" in name else f"anthropic:{name}", service.models)
    except UserError as error:
        raise RefusedError(400, "unknown_baseline_model", str(error)) from error
    if not found.prices:
        raise RefusedError(400, "unknown_baseline_model", f"no price is known for {found.id!a}")
    return found


async def regret(service: Service, request: InWindow) -> RegretReply:
    window, found = await _over(
        service, request, lambda some, within: regret_of(some, service.log, service.models, within)
    )
    return RegretReply(window=window, current_pricing_version=service.pricing_version, data=found)
