"""What the same prompts would have cost under the optimal caching plan, and under other tools' policies."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.spending import AuditScope, SessionSpending, Spending
from holdfast.replay.audit import PriceLookup
from holdfast.replay.counterfactual import replay_transcripts
from holdfast.replay.recording import Transcript, deduplicate_transcripts
from holdfast.replay.stored_sessions import AuditedSession, audit_logs, build_stored_transcript
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.context import AppContext
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.spending_cache import sum_spending

# Computing the optimum takes time per session; this bounds one request to the route.
SESSIONS_MAX = 200
REPLAYED_SESSIONS_MAX = 20
"""How many sessions are replayed, newest first: each takes a while."""


class PolicyCostRow(msgspec.Struct, frozen=True):
    policy: str
    cost_usd: float
    read_share: float


class PolicyCosts(msgspec.Struct, frozen=True):
    """Of the sessions whose text is stored, replies included; `holdfast` is the estimate of the report."""

    sessions: int
    policies: tuple[PolicyCostRow, ...]


class RegretRow(msgspec.Struct, frozen=True):
    """`title` is as in the list of sessions."""

    session: str
    title: str
    spent_usd: float
    planned_usd: float
    planned_range_usd: tuple[float, float]
    optimum_usd: float
    regret_usd: float


class Regret(msgspec.Struct, frozen=True):
    """`regret_usd` is the cost above the optimum, which knows all later calls.

    `planned_usd` is the cost of our plan, as in the report, and `planned_range_usd` its range: providers do not
    document whether a long TTL also keeps the shorter prefixes inside it.
    """

    spent_usd: float
    planned_usd: float
    planned_range_usd: tuple[float, float]
    optimum_usd: float
    regret_usd: float
    call_count: int
    sessions: tuple[RegretRow, ...]
    sessions_left_out: int


def compute_regret(context: AppContext, scope: LedgerScope) -> Regret:
    log, ids = context.log, _list_newest(context.log, scope, sessions_max=SESSIONS_MAX)
    spending = sum_sessions(context, ids, AuditScope(since=scope.since, until=scope.until, ranges=True))
    left_out = max(0, log.cost_queries().count_sessions(scope, calls_only=True) - SESSIONS_MAX)
    titles = context.find_titles(row.id for row in spending.sessions)
    sessions = tuple(RegretRow(row.id, titles[row.id], *_amounts(row, row.amounts.usd)) for row in spending.sessions)
    return Regret(*_amounts(spending, spending.total.usd), spending.total.calls, sessions, left_out)


def sum_sessions(context: AppContext, ids: Sequence[str], scope: AuditScope) -> Spending:
    """Where the money of sessions went, as in the report."""

    def audit(positions: Mapping[str, object]) -> Iterator[AuditedSession]:
        return audit_logs(context.log, positions, PriceLookup(context.models), scope)

    return sum_spending(context.log, ids, scope, audit, cache=context.spending_cache)


def _amounts(
    costs: Spending | SessionSpending, spent: Decimal
) -> tuple[float, float, tuple[float, float], float, float]:
    """What was spent, the cost of our plan and its range, the optimum, and the regret."""
    low, high = map(to_json_usd, costs.planned_range_usd or (spent, spent))
    optimum = costs.optimum_usd if costs.optimum_usd is not None else spent
    return (
        to_json_usd(spent),
        to_json_usd(costs.planned_usd),
        (low, high),
        to_json_usd(optimum),
        to_json_usd(spent - optimum),
    )


def compute_policy_costs(log: DatabaseEventLog, models: Models, scope: LedgerScope) -> PolicyCosts:
    """The newest sessions under our policy and under those of other tools."""
    transcripts = _transcripts(log, models, scope, sessions_max=REPLAYED_SESSIONS_MAX)
    totals = replay_transcripts(transcripts, PriceLookup(models))
    rows = (
        PolicyCostRow(row.policy, to_json_usd(row.cost_usd), round(row.read_share, 6))
        for row in totals.build_report().policies
    )
    return PolicyCosts(totals.recordings, tuple(sorted(rows, key=lambda row: (row.cost_usd, row.policy))))


def _transcripts(log: DatabaseEventLog, models: Models, scope: LedgerScope, *, sessions_max: int) -> list[Transcript]:
    """Transcripts of the newest sessions with a call in the window."""
    ids = _list_newest(log, scope, sessions_max=sessions_max)
    stored = (build_stored_transcript(log.read(session_id), session_id, models) for session_id in ids)
    return deduplicate_transcripts((transcript for transcript in stored if transcript), since=scope.since)


def _list_newest(log: DatabaseEventLog, scope: LedgerScope, *, sessions_max: int) -> list[str]:
    """The newest sessions with a call in the window."""
    rows = log.cost_queries().list_sessions(scope, order="newest", limit=sessions_max, calls_only=True)
    return [row.id for row in rows]
