"""HTTP routes of the overview: what was spent, saved and lost lately, what needs attention, and what to do next."""

import datetime

import msgspec

from holdfast.ledger.analytics.queries import LedgerScope, SessionCost
from holdfast.ledger.analytics.results import count_failures, count_unreadable_calls
from holdfast.ledger.spending import AuditScope
from holdfast.ledger.spending_actions import REMEDIES
from holdfast.service.alerts import Alert, ShortBudget, find_alerts, list_short_budgets
from holdfast.service.api.analytics import AnalyticsResponse, WindowRequest, resolve_window
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.api.breaks import FailureRow, make_failure_rows
from holdfast.service.api.regret import sum_sessions
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import make_window, to_datetime
from holdfast.service.http.routes import EmptyRequest, Route, copy_fields, json_route

DAY_SECONDS = 86_400
WEEK_DAYS = 7
CHART_DAYS = 14

LIVE_SECONDS = 300.0
"""A session counts as live this long after its last event: the shortest TTL, so that its next call can still read."""

LIVE_MAX = 100
FAILURES_MAX = 10
AUDITED_SESSIONS_MAX = 200
"""The sessions that spent most: reading all events of a session takes a while."""


class PeriodTotals(msgspec.Struct, frozen=True):
    """`spent_usd` does not contain `unpriced_calls`. `read_share` is null if nothing was sent."""

    spent_usd: float
    saved_usd: float
    lost_usd: float
    read_share: float | None
    call_count: int
    unpriced_calls: int


class PeriodComparison(msgspec.Struct, frozen=True):
    """A period and the one of the same length before it."""

    now: PeriodTotals
    before: PeriodTotals


class LossRow(msgspec.Struct, frozen=True):
    """`remedy` is what to do about the cause."""

    cause: str
    component: str | None
    call_count: int
    lost_usd: float
    remedy: str


class DayRow(msgspec.Struct, frozen=True):
    day: datetime.date
    spent_usd: float
    lost_usd: float


class LiveSession(msgspec.Struct, frozen=True):
    """`title` is as in the list of sessions."""

    id: str
    title: str
    name: str | None
    model: str
    spent_usd: float
    last_event_at: datetime.datetime


class BudgetRow(msgspec.Struct, frozen=True):
    """A gateway key that has used most of its budget of today or of this month."""

    id: str
    name: str | None
    period: str
    share: float
    limit_usd: float
    resets_at: datetime.datetime


class Overview(msgspec.Struct, frozen=True):
    """Today begins at midnight UTC and is compared with yesterday until the same time.

    Everything else is about the last seven days. `days` are the last 14, without gaps. `live` has at most 100 sessions,
    `live_more` says whether there are others. `failures` are the newest 10. `budgets` are those of which 80 % or more
    is spent. `warnings` say why the service is degraded; `alerts` are these, short budgets, unreadable calls and read
    shares below their usual range.
    """

    today: PeriodComparison
    week: PeriodComparison
    days: tuple[DayRow, ...]
    losses: tuple[LossRow, ...]
    live: tuple[LiveSession, ...]
    live_more: bool
    unreadable_calls: int
    unpriced_models: tuple[str, ...]
    failed_calls: dict[str, int]
    failures: tuple[FailureRow, ...]
    warnings: tuple[str, ...]
    budgets: tuple[BudgetRow, ...]
    alerts: tuple[Alert, ...]


class OverviewResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: Overview


class ActionRow(msgspec.Struct, frozen=True):
    """What to do, how, what it would save a week, and the assumption behind that.

    If `how` names a session, `session` is its id, and `title` as in the list of sessions.
    """

    action: str
    how: str
    usd_a_week: float
    assumption: str
    session: str | None
    title: str | None


class Actions(msgspec.Struct, frozen=True):
    """Those that save most, estimated from the `session_count` sessions that spent most."""

    actions: tuple[ActionRow, ...]
    session_count: int
    sessions_left_out: int


class ActionsResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: Actions


def get_overview(context: AppContext, request: EmptyRequest) -> OverviewResponse:
    """Spending today and in the last seven days against before, losses by cause, live sessions, and what is wrong."""
    now = context.clock()
    midnight = now // DAY_SECONDS * DAY_SECONDS
    week = WEEK_DAYS * DAY_SECONDS
    costs = context.log.cost_queries()
    scope = LedgerScope(now - week, now, simulated=context.simulated)
    live = _list_live_sessions(context, now)
    live_titles = context.format_titles(session.row for session in live)
    failures = context.log.analytics_queries().call_failures(scope, limit=FAILURES_MAX)
    overview = Overview(
        today=_compare(context, midnight, now, DAY_SECONDS),
        week=_compare(context, now - week, now, week),
        days=_list_days(context, midnight, now),
        losses=tuple(
            LossRow(row.kind, row.component, row.calls, to_json_usd(row.lost_usd), REMEDIES.get(row.kind, ""))
            for row in costs.causes(scope)
            if row.lost_usd
        ),
        live=tuple(_live_row(session, live_titles[session.row.id]) for session in live[:LIVE_MAX]),
        live_more=len(live) > LIVE_MAX,
        unreadable_calls=count_unreadable_calls(costs, scope),
        unpriced_models=tuple(sorted({part.model for part in costs.unpriced(scope)})),
        failed_calls=count_failures(costs, scope),
        failures=make_failure_rows(context, failures),
        warnings=tuple(reason for reason in (warning() for warning in context.warnings) if reason),
        budgets=tuple(map(_budget_row, list_short_budgets(context, now))),
        alerts=find_alerts(context, now),
    )
    window = make_window(scope.since, scope.until)
    return OverviewResponse(window=window, current_pricing_version=context.pricing_version, data=overview)


def _compare(context: AppContext, start: float, end: float, back: float) -> PeriodComparison:
    return PeriodComparison(_sum_period(context, start, end), _sum_period(context, start - back, end - back))


def _sum_period(context: AppContext, start: float, end: float) -> PeriodTotals:
    scope = LedgerScope(start, end, simulated=context.simulated)
    costs = context.log.cost_queries()
    totals = costs.totals(scope)
    return PeriodTotals(
        spent_usd=to_json_usd(totals.spent_usd),
        saved_usd=to_json_usd(totals.saved_usd),
        lost_usd=to_json_usd(totals.lost_usd),
        read_share=round(totals.usage.read_share, 6) if totals.usage.tokens_sent else None,
        call_count=totals.calls,
        unpriced_calls=sum(part.calls for part in costs.unpriced(scope)),
    )


def _list_days(context: AppContext, midnight: float, now: float) -> tuple[DayRow, ...]:
    start = midnight - (CHART_DAYS - 1) * DAY_SECONDS
    rows = context.log.cost_queries().days(LedgerScope(start, now, simulated=context.simulated))
    amounts = {row.date: row.amounts for row in rows}
    days = (to_datetime(start + index * DAY_SECONDS).date() for index in range(CHART_DAYS))
    return tuple(
        DayRow(day, to_json_usd(sums.spent_usd), to_json_usd(sums.lost_usd))
        if (sums := amounts.get(day))
        else DayRow(day, 0.0, 0.0)
        for day in days
    )


def _list_live_sessions(context: AppContext, now: float) -> tuple[SessionCost, ...]:
    newest = context.log.analytics_queries().session_costs(
        order="recency", limit=LIVE_MAX + 1, skip=0, simulated=context.simulated
    )
    return tuple(session for session in newest if session.row.last_event_at > now - LIVE_SECONDS)


def _budget_row(budget: ShortBudget) -> BudgetRow:
    view = budget.view
    resets_at = view.resets_at if budget.period == "day" else view.month_resets_at
    return BudgetRow(view.id, view.name, budget.period, budget.share, budget.limit, resets_at)


def _live_row(session: SessionCost, title: str) -> LiveSession:
    row = session.row
    last_event_at = to_datetime(row.last_event_at)
    return LiveSession(row.id, title, row.name, session.model, to_json_usd(session.spent_usd), last_event_at)


def get_actions(context: AppContext, request: WindowRequest) -> ActionsResponse:
    """What to do next, and what it would save: the actions of `holdfast report` for the same sessions."""
    window, scope = resolve_window(context, request)
    costs = context.log.cost_queries()
    ids = [row.id for row in costs.list_sessions(scope, limit=AUDITED_SESSIONS_MAX)]
    spending = sum_sessions(context, ids, AuditScope(since=scope.since, until=scope.until))
    titles = context.find_titles(row.session for row in spending.actions if row.session)
    actions = Actions(
        tuple(
            copy_fields(
                ActionRow,
                row,
                usd_a_week=to_json_usd(row.usd_a_week),
                session=row.session or None,
                title=titles.get(row.session),
            )
            for row in spending.actions
        ),
        len(spending.sessions),
        max(0, costs.count_sessions(scope) - AUDITED_SESSIONS_MAX),
    )
    return ActionsResponse(window=window, current_pricing_version=context.pricing_version, data=actions)


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/analytics/overview", get_overview, rule="read"),
    json_route("GET", "/analytics/actions", get_actions, rule="read"),
)
