"""HTTP routes for cost, savings, cache effectiveness, breaks, reliability, and the events of one turn."""

import datetime
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import Model
from holdfast.errors import UserError
from holdfast.events.log import Event, event_type_of
from holdfast.events.payloads.session import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.ledger.analytics import queries
from holdfast.ledger.analytics.queries import GroupBy, GroupFilter, LedgerScope, list_size_limits
from holdfast.ledger.money import NAME_CHARACTERS_MAX
from holdfast.service.api.analytics_rows import (
    BreakRow,
    CacheEffectRow,
    CostRow,
    SkillLoadRow,
    add_key_names,
    compute_percentile,
    make_break_rows,
    make_cost_rows,
    make_effect_rows,
    make_json_cost,
    make_skill_rows,
    reprice_usage,
    to_json_usd,
)
from holdfast.service.api.regret import PolicyCosts, Regret, compute_policy_costs, compute_regret
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import TimeText, TimeWindow, make_window, parse_window, to_datetime
from holdfast.service.http.routes import ApiError, Route, copy_fields, json_route, make_not_found_error

BASELINE = "anthropic:claude-sonnet-4-6"
LISTED_MAX = 500

# Bounds the offset that the store has to skip over.
SKIPPED_MAX = 1_000_000
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
KeyId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
Response = TypeVar("Response", bound="AnalyticsResponse")


class AnalyticsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Common part of every response: its time window, and the version of the current prices."""

    window: TimeWindow
    current_pricing_version: str


class WindowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    start: TimeText | None = None
    end: TimeText | None = None


class CostRequest(WindowRequest, frozen=True):
    group_by: GroupBy = "model"
    model: str | None = None
    provider: str | None = None
    session: str | None = None
    gateway_key: KeyId | None = None
    user: Name | None = None
    team: Name | None = None
    include_workers: bool = True


class CostResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[CostRow, ...] | CostRow


class CacheEffectResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[CacheEffectRow, ...]


class BreaksResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[BreakRow, ...]


class SkillLoadsResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[SkillLoadRow, ...]


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


class ReliabilityResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: Reliability


class SessionCostsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 25
    order: Literal["cost", "recency"] = "cost"
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


class SessionCostRow(msgspec.Struct, frozen=True):
    """`title` is the name, or client and start. `cost_usd` is null if no price is known for any of its calls."""

    id: str
    title: str
    name: str | None
    workspace_path: str | None
    active_model: str
    cost_usd: float | None
    turn_count: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


class SessionCostsResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[SessionCostRow, ...]


class TurnRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    turn_id: str


class BlockSize(msgspec.Struct, frozen=True):
    type: str
    bytes: int


class MessageSize(msgspec.Struct, frozen=True):
    role: str
    blocks: tuple[BlockSize, ...]


class TurnEvent(msgspec.Struct, frozen=True):
    id: str
    at: float
    type: str
    actor: str


class TurnDetail(msgspec.Struct, frozen=True):
    turn_id: str
    session_id: str
    in_flight: bool
    events: tuple[TurnEvent, ...]
    messages: tuple[MessageSize, ...]


class TurnResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: TurnDetail


class SavingsRequest(WindowRequest, frozen=True):
    """`rivals` replays the newest sessions under other tools' caching policies, which takes a while."""

    baseline: str = BASELINE
    rivals: bool = False


class Savings(msgspec.Struct, frozen=True):
    """Savings against a baseline model at today's prices, and against no cache at the prices paid.

    No price was known for `unpriced_calls` when they were made; `actual_stamped_usd` does not contain them.
    """

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
    rivals: PolicyCosts | None
    unpriced_calls: int


class SavingsResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: Savings


class RegretResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: Regret


def resolve_window(context: AppContext, request: WindowRequest) -> tuple[TimeWindow, LedgerScope]:
    since, until = parse_window(request.start, request.end, now=context.clock())
    return make_window(since, until), LedgerScope(since=since, until=until, simulated=context.simulated)


def _respond(
    context: AppContext,
    request: WindowRequest | None,
    response: Callable[..., Response],
    make: Callable[[LedgerScope], object],
) -> Response:
    """The response with what `make` returns for the requested window, or for all time."""
    window, scope = TimeWindow(None, None), LedgerScope(simulated=context.simulated)
    if request is not None:
        window, scope = resolve_window(context, request)
    return response(window=window, current_pricing_version=context.pricing_version, data=make(scope))


def get_cost(context: AppContext, request: CostRequest) -> CostResponse:
    """Cost by model, provider, session, day or hour, or in total; by default for the last seven days."""
    filters = copy_fields(GroupFilter, request, workers=request.include_workers)

    def make(scope: LedgerScope) -> tuple[CostRow, ...] | CostRow:
        figures = context.log.analytics_queries()
        groups = figures.groups(request.group_by, scope, filters)
        rows = make_cost_rows(request.group_by, groups, figures.unpriced_groups(request.group_by, scope, filters))
        if request.group_by == "gateway_key":
            return add_key_names(rows, context.records.key)
        return rows[0] if request.group_by == "none" else rows

    return _respond(context, request, CostResponse, make)


def get_cache_effectiveness(context: AppContext, request: WindowRequest) -> CacheEffectResponse:
    """Share of input tokens read from and written to caches, by model."""
    figures = context.log.analytics_queries()
    return _respond(
        context, request, CacheEffectResponse, lambda scope: make_effect_rows(figures.groups("model", scope))
    )


def get_breaks(context: AppContext, request: WindowRequest) -> BreaksResponse:
    """Cache breaks by cause and component, and what they cost."""
    costs = context.log.cost_queries()
    return _respond(context, request, BreaksResponse, lambda scope: make_break_rows(costs.verdicts(scope)))


def get_skill_loads(context: AppContext, request: WindowRequest) -> SkillLoadsResponse:
    """Skill loads by reason, and tokens preloaded without use."""
    figures = context.log.analytics_queries()
    return _respond(context, request, SkillLoadsResponse, lambda scope: make_skill_rows(figures.skill_loads(scope)))


def get_reliability(context: AppContext, request: WindowRequest) -> ReliabilityResponse:
    """Failed calls by error class, and latency percentiles by model."""

    def make(scope: LedgerScope) -> Reliability:
        figures = context.log.analytics_queries()
        failures, latencies = figures.failures(scope), figures.latencies(scope)
        return Reliability(
            tuple(ErrorRow(kind, count) for kind, count in sorted(failures.items(), key=lambda row: (-row[1], row[0]))),
            tuple(
                LatencyRow(model, compute_percentile(counts, 50), compute_percentile(counts, 95), sum(counts.values()))
                for model, counts in sorted(latencies.items())
            ),
        )

    return _respond(context, request, ReliabilityResponse, make)


def get_session_costs(context: AppContext, request: SessionCostsRequest) -> SessionCostsResponse:
    """Sessions with their cost, most expensive or newest first."""

    def make(scope: LedgerScope) -> tuple[SessionCostRow, ...]:
        page = context.log.analytics_queries().session_costs(
            order=request.order, limit=request.limit, skip=request.skip, simulated=context.simulated
        )
        unpriced = {part.session_id for part in context.log.cost_queries().unpriced(scope)}
        titles = context.format_titles(session.row for session in page)
        return tuple(
            _session_cost(session, titles[session.row.id], is_unpriced=session.row.id in unpriced) for session in page
        )

    return _respond(context, None, SessionCostsResponse, make)


def _session_cost(session: queries.SessionCost, title: str, *, is_unpriced: bool) -> SessionCostRow:
    row = session.row
    return SessionCostRow(
        id=row.id,
        title=title,
        name=row.name,
        workspace_path=session.workspace_path,
        active_model=session.model,
        cost_usd=make_json_cost(session.spent_usd, is_unpriced=is_unpriced),
        turn_count=session.turns,
        created_at=to_datetime(row.started_at),
        updated_at=to_datetime(row.last_event_at),
    )


def get_turn(context: AppContext, request: TurnRequest) -> TurnResponse:
    """One turn, event by event, without message content."""

    def make(scope: LedgerScope) -> TurnDetail:
        events = context.log.analytics_queries().turn_events(request.turn_id)
        if not events:
            raise make_not_found_error("turn", request.turn_id)
        return make_turn_detail(request.turn_id, events[0].session_id, events)

    return _respond(context, None, TurnResponse, make)


def get_savings(context: AppContext, request: SavingsRequest) -> SavingsResponse:
    """Savings against no cache, against a baseline model, and optionally against other caching policies."""
    baseline = _baseline(context, request.baseline)

    def make(scope: LedgerScope) -> Savings:
        # Charges outside of calls, such as cache storage, are on both sides, as in the CLI report.
        totals = context.log.cost_queries().totals(scope)
        sized = context.log.analytics_queries().usage_by_size(list_size_limits(context.models), scope)
        repriced_usd = reprice_usage(sized, baseline, context.models, at=context.clock())
        saved = repriced_usd.baseline_usd - repriced_usd.actual_usd
        return Savings(
            baseline_model=baseline.id,
            actual_repriced_usd=to_json_usd(repriced_usd.actual_usd),
            baseline_repriced_usd=to_json_usd(repriced_usd.baseline_usd),
            savings_usd=to_json_usd(saved),
            savings_pct=round(float(saved / repriced_usd.baseline_usd * 100), 4) if repriced_usd.baseline_usd else None,
            actual_stamped_usd=to_json_usd(totals.spent_usd),
            rows_total=totals.calls,
            rows_missing_from_price_table=repriced_usd.missing,
            uncached_usd=to_json_usd(totals.uncached_usd),
            saved_by_caching_usd=to_json_usd(totals.saved_usd),
            rivals=compute_policy_costs(context.log, context.models, scope) if request.rivals else None,
            unpriced_calls=sum(part.calls for part in context.log.cost_queries().unpriced(scope)),
        )

    return _respond(context, request, SavingsResponse, make)


def _baseline(context: AppContext, name: str) -> Model:
    try:
        row = find_model(name if ":" in name else f"anthropic:{name}", context.models)
    except UserError as error:
        raise ApiError(400, "unknown_baseline_model", str(error)) from error
    if not row.prices:
        raise ApiError(400, "unknown_baseline_model", f"the catalog has no price for {row.id!a}")
    return row


def get_regret(context: AppContext, request: WindowRequest) -> RegretResponse:
    """Cost above the minimum that any caching plan could have achieved."""
    return _respond(context, request, RegretResponse, lambda scope: compute_regret(context, scope))


def make_turn_detail(turn_id: str, session_id: str, events: Sequence[Event]) -> TurnDetail:
    turn_events = [event for event in events if event.turn_id == turn_id]
    messages = (event.payload.message for event in turn_events if isinstance(event.payload, MessageAppended))
    return TurnDetail(
        turn_id=turn_id,
        session_id=session_id,
        in_flight=not any(isinstance(event.payload, TurnCompleted | TurnCancelled) for event in turn_events),
        events=tuple(TurnEvent(event.id, event.at, event_type_of(event.payload), event.actor) for event in turn_events),
        messages=tuple(
            MessageSize(
                message.role,
                tuple(
                    BlockSize(type(block).__name__.lower(), len(msgspec.json.encode(block)))
                    for block in message.content
                ),
            )
            for message in messages
        ),
    )


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/analytics/cost", get_cost, rule="read"),
    json_route("GET", "/analytics/cache_effectiveness", get_cache_effectiveness, rule="read"),
    json_route("GET", "/analytics/reliability", get_reliability, rule="read"),
    json_route("GET", "/analytics/sessions", get_session_costs, rule="read"),
    json_route("GET", "/analytics/turns/{turn_id}", get_turn, rule="read", error_statuses=(404,)),
    json_route("GET", "/analytics/savings", get_savings, rule="read"),
    json_route("GET", "/analytics/skills", get_skill_loads, rule="read"),
    json_route("GET", "/analytics/breaks", get_breaks, rule="read"),
    json_route("GET", "/analytics/regret", get_regret, rule="read"),
)
