"""A second implementation of every cost and analytics query, folded from the events: the tables must agree with it."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.events.log import Event, EventLog, SessionRow
from holdfast.events.payloads.session import SessionStarted, TurnCancelled, TurnCompleted, TurnStarted
from holdfast.ledger.analytics.queries import (
    HOUR_SECONDS,
    NO_FILTER,
    CacheBreakCall,
    CallFailure,
    Group,
    GroupBy,
    GroupFilter,
    GroupName,
    LedgerScope,
    ListedSession,
    ReadShare,
    SessionCost,
    SessionCostOrder,
    SessionFilter,
    SessionOrder,
    SessionOrdering,
    SessionPosition,
    SizedUsage,
    SkillLoad,
    UnpricedSums,
    UnpricedUsage,
    find_skill_loads,
    format_group_name,
)
from holdfast.ledger.analytics.results import FULL_SCOPE, SESSIONS_MAX, CostQueries, RollUpRows, build_amounts
from holdfast.ledger.cache.verdicts import Verdict, VerdictKind
from holdfast.ledger.money import to_dollars
from holdfast.ledger.postings import Posting, RollUp, RollUpTotals, Sums, component_key, iter_postings
from holdfast.stores.sql.analytics import ALL_SESSIONS, NEWEST_FIRST
from holdfast.types.usage import Usage


class EventAnalyticsQueries:
    def __init__(self, log: EventLog, models: Models) -> None:
        self._log = log
        self._models = models

    def groups(
        self, group_by: GroupBy, scope: LedgerScope = FULL_SCOPE, narrowed: GroupFilter = NO_FILTER
    ) -> tuple[Group, ...]:
        sums_by_key: dict[str | int, Sums] = {0: Sums()} if group_by == "none" else {}
        for row, posting in self._postings(scope):
            if posting.sums.entries and _matches_filter(narrowed, row, posting):
                key = _group_key(group_by, row, posting)
                sums_by_key[key] = sums_by_key.get(key, Sums()) + posting.sums
        return tuple(Group(format_group_name(group_by, key), build_amounts(sums)) for key, sums in sums_by_key.items())

    def unpriced_groups(
        self, group_by: GroupBy, scope: LedgerScope = FULL_SCOPE, narrowed: GroupFilter = NO_FILTER
    ) -> dict[GroupName, UnpricedSums]:
        sums: dict[GroupName, UnpricedSums] = {}
        for row, posting in self._postings(scope):
            if posting.entry is not None and posting.entry.is_unpriced and _matches_filter(narrowed, row, posting):
                name, usage = format_group_name(group_by, _group_key(group_by, row, posting)), posting.sums.usage
                before = sums.get(name, UnpricedSums())
                sums[name] = UnpricedSums(before.calls + 1, before.tokens + usage.tokens_sent + usage.output)
        return sums

    def failures(self, scope: LedgerScope = FULL_SCOPE) -> dict[str, int]:
        counts: dict[str, int] = {}
        for _, posting in self._postings(scope):
            if posting.outcome not in (None, "completed"):
                outcome = str(posting.outcome)
                counts[outcome] = counts.get(outcome, 0) + 1
        return counts

    def call_failures(
        self, scope: LedgerScope = FULL_SCOPE, *, outcome: str | None = None, limit: int, skip: int = 0
    ) -> tuple[CallFailure, ...]:
        failed = [
            (row, posting)
            for row, posting in self._postings(scope)
            if posting.outcome not in (None, "completed") and outcome in (None, posting.outcome)
        ]
        failed.sort(key=lambda found: (found[1].at, found[1].event_id), reverse=True)
        return tuple(
            CallFailure(row, posting.at, posting.model, str(posting.outcome), posting.latency_ms, posting.retries)
            for row, posting in failed[skip : skip + limit]
        )

    def latencies(self, scope: LedgerScope = FULL_SCOPE) -> dict[str, dict[int, int]]:
        counts_by_model: dict[str, dict[int, int]] = {}
        for _, posting in self._postings(scope):
            if posting.entry is not None:
                counts = counts_by_model.setdefault(posting.model, {})
                counts[posting.latency_ms] = counts.get(posting.latency_ms, 0) + 1
        return counts_by_model

    def usage_by_size(self, limits: Sequence[int], scope: LedgerScope = FULL_SCOPE) -> tuple[SizedUsage, ...]:
        usage_by_key: dict[tuple[str, int], tuple[int, Usage]] = {}
        for _, posting in self._postings(scope):
            if posting.entry is not None:
                usage = posting.sums.usage
                key = posting.model, sum(usage.tokens_sent > limit for limit in limits)
                calls, usage_before = usage_by_key.get(key, (0, Usage()))
                usage_by_key[key] = calls + 1, usage_before + usage
        return tuple(SizedUsage(*key, *calls_and_usage) for key, calls_and_usage in sorted(usage_by_key.items()))

    def cache_breaks(
        self,
        scope: LedgerScope = FULL_SCOPE,
        *,
        kind: VerdictKind | None = None,
        component: str | None = None,
        limit: int,
        skip: int,
    ) -> tuple[CacheBreakCall, ...]:
        ranked_calls: list[tuple[tuple[int, str, int, str], CacheBreakCall]] = []
        for row, posting in self._postings(scope):
            entry = posting.entry
            verdict = entry.verdict if entry else None
            if entry is None or verdict is None or verdict.kind == "held":
                continue
            if kind in (None, verdict.kind) and component in (None, component_key(verdict.component)):
                rank = -posting.sums.lost, row.id, entry.record.number, entry.event_id
                call = entry.record
                broken = CacheBreakCall(row.id, row.name, call.number, call.at, call.model, verdict)
                ranked_calls.append((rank, broken))
        ranked_calls.sort(key=lambda ranked_call: ranked_call[0])
        return tuple(call for _, call in ranked_calls[skip : skip + limit])

    def skill_loads(self, scope: LedgerScope = FULL_SCOPE) -> tuple[SkillLoad, ...]:
        loads = (load for _, events in self._sessions(simulated=scope.simulated) for load in find_skill_loads(events))
        return tuple(load for load in loads if scope.since <= load.at < scope.until)

    def session_costs(
        self, *, order: SessionCostOrder, limit: int, skip: int, simulated: bool = False
    ) -> tuple[SessionCost, ...]:
        costs = [self._session_cost(row, events) for row, events in self._sessions(simulated=simulated)]
        if order == "cost":
            costs.sort(key=lambda cost: (-cost.spent_usd, cost.row.id))
        return tuple(costs[skip : skip + limit])

    def _session_cost(self, row: SessionRow, events: Sequence[Event]) -> SessionCost:
        session_postings = list(iter_postings(events, self._models))
        models = [posting.model for posting in session_postings if posting.entry is not None]
        started = next((event.payload for event in events if isinstance(event.payload, SessionStarted)), None)
        return SessionCost(
            row=row,
            spent_usd=to_dollars(sum(posting.sums.spent for posting in session_postings)),
            model=models[-1] if models else row.model,
            turns=sum(isinstance(event.payload, TurnCompleted | TurnCancelled) for event in events),
            workspace_path=started.workspace_path if started else None,
        )

    def last_verdicts(self, session_ids: Sequence[str]) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        for session_id in session_ids:
            for posting in iter_postings(self._log.read(session_id), self._models):
                if posting.entry is not None and posting.entry.verdict is not None:
                    verdicts[session_id] = posting.entry.verdict
        return verdicts

    def find_session_rows(self, session_ids: Sequence[str]) -> tuple[SessionRow, ...]:
        return tuple(row for row in self._log.sessions() if row.id in session_ids)

    def find_sessions(
        self, filter_: SessionFilter = ALL_SESSIONS, ordering: SessionOrdering = NEWEST_FIRST, *, limit: int
    ) -> tuple[ListedSession, ...]:
        """Of the filters, `simulated` only; each of the others has a test of its own."""
        listed = []
        for row, events in self._sessions(simulated=filter_.simulated):
            postings = list(iter_postings(events, self._models))
            sums = sum((posting.sums for posting in postings), Sums())
            calls = [posting.entry for posting in postings if posting.entry is not None]
            losing = [entry for entry in calls if entry.verdict and entry.verdict.lost_usd]
            worst = min(losing, key=lambda entry: (-entry.verdict.lost_usd, entry.record.number), default=None)  # type: ignore[union-attr] # those without a verdict are left out
            values = {"activity": row.last_event_at, "started": row.started_at, "spent": sums.spent, "lost": sums.lost}
            values |= {"calls": sums.calls, "read_share": sums.cache_read * 10**6 // max(sums.usage.tokens_sent, 1)}
            verdict = worst.verdict.kind if worst and worst.verdict else None
            unpriced = sum(entry.is_unpriced for entry in calls)
            position = SessionPosition(values[ordering.sort], row.id)
            newest = max(calls, key=lambda entry: (entry.record.number, entry.event_id), default=None)
            model = newest.record.model if newest else row.model
            listed.append(ListedSession(row, model, build_amounts(sums), verdict, unpriced, position))
        listed.sort(key=lambda session: (session.position.value, session.row.id), reverse=ordering.descending)
        return tuple(listed[:limit])

    def count_matches(self, filter_: SessionFilter = ALL_SESSIONS) -> int:
        return sum(1 for _ in self._sessions(simulated=filter_.simulated))

    def read_shares(
        self, by: Literal["client", "gateway_key"], scope: LedgerScope = FULL_SCOPE
    ) -> tuple[ReadShare, ...]:
        sums: dict[tuple[str, str], Sums] = {}
        since = LedgerScope(since=scope.since // 86_400 * 86_400, simulated=scope.simulated)
        for row, posting in self._postings(since):
            subject = row.client if by == "client" else posting.payer.key_id
            if subject and posting.sums.entries:
                key = subject, posting.day
                sums[key] = sums.get(key, Sums()) + posting.sums
        return tuple(
            ReadShare(*key, total.calls, total.usage.tokens_sent, total.cache_read)
            for key, total in sorted(sums.items())
        )

    def turn_events(self, turn_id: str) -> tuple[Event, ...]:
        for row in self._log.sessions():
            events = list(self._log.read(row.id))
            if any(event.id == turn_id and isinstance(event.payload, TurnStarted) for event in events):
                return tuple(event for event in events if turn_id in (event.id, event.turn_id))
        return ()

    def _postings(self, scope: LedgerScope) -> Iterator[tuple[SessionRow, Posting]]:
        return _iter_scope(self._log, self._models, msgspec.structs.replace(scope, session_id=None))

    def _sessions(self, *, simulated: bool) -> Iterator[tuple[SessionRow, list[Event]]]:
        for row in self._log.sessions():
            events = list(self._log.read(row.id))
            is_simulated = any(
                isinstance(event.payload, SessionStarted) and event.payload.simulated for event in events
            )
            if simulated or not is_simulated:
                yield row, events


def _group_key(group_by: GroupBy, row: SessionRow, posting: Posting) -> str | int:
    keys: dict[GroupBy, str | int] = {
        "model": posting.model,
        "provider": posting.provider,
        "session": row.id,
        "day": posting.day,
        "hour": int(posting.at) // HOUR_SECONDS,
        "gateway_key": posting.payer.key_id,
        "user": posting.payer.user_id,
        "team": posting.payer.team_id,
        "parent_session": row.id if row.parent_session_id is None else row.parent_session_id,
        "is_worker": int(row.parent_session_id is not None),
        "none": 0,
    }
    return keys[group_by]


def _matches_filter(narrowed: GroupFilter, row: SessionRow, posting: Posting) -> bool:
    payer = posting.payer
    return (
        narrowed.model in (None, posting.model)
        and narrowed.provider in (None, posting.provider)
        and narrowed.session in (None, row.id)
        and narrowed.gateway_key in (None, payer.key_id)
        and narrowed.user in (None, payer.user_id)
        and narrowed.team in (None, payer.team_id)
        and (narrowed.workers or row.parent_session_id is None)
    )


def build_event_cost_queries(log: EventLog, models: Models) -> CostQueries:
    """Queries that read every event of the requested sessions each time."""
    return CostQueries(_EventSource(log, models))


class _EventSource:
    def __init__(self, log: EventLog, models: Models) -> None:
        self._log = log
        self._models = models

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: LedgerScope) -> RollUpRows:
        totals = RollUpTotals()
        totals.post(posting for _, posting in self._postings(scope))
        positions = [table.keys.index(key) for key in keys]
        for key, sums in totals.rows(table).items():
            yield tuple(key[position] for position in positions), sums

    def sessions(
        self, scope: LedgerScope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        sums_by_session: dict[str, tuple[SessionRow, Sums]] = {}
        for row, posting in self._postings(scope):
            _, sums = sums_by_session.get(row.id, (row, Sums()))
            sums_by_session[row.id] = row, sums + posting.sums
        spenders = [(row, sums) for row, sums in sums_by_session.values() if sums.calls or sums.spent]
        return _sort_sessions(spenders, order)[offset : offset + limit]

    def session_rows(
        self, scope: LedgerScope, *, order: SessionOrder, limit: int, calls_only: bool
    ) -> Sequence[SessionRow]:
        rows = self.sessions(scope, order=order, limit=SESSIONS_MAX, offset=0)
        return [row for row, sums in rows if sums.calls or not calls_only][:limit]

    def count_sessions(self, scope: LedgerScope, *, calls_only: bool) -> int:
        return len(self.session_rows(scope, order="lost", limit=SESSIONS_MAX, calls_only=calls_only))

    def unpriced(self, scope: LedgerScope) -> tuple[UnpricedUsage, ...]:
        usage_by_key: dict[tuple[str, str], tuple[int, Usage]] = {}
        for row, posting in self._postings(scope):
            if posting.entry is not None and posting.entry.is_unpriced:
                calls, usage = usage_by_key.get((row.id, posting.model), (0, Usage()))
                usage_by_key[row.id, posting.model] = calls + 1, usage + posting.sums.usage
        return tuple(UnpricedUsage(*key, *calls_and_usage) for key, calls_and_usage in sorted(usage_by_key.items()))

    def worst_verdicts(self, session_ids: Sequence[str], scope: LedgerScope) -> dict[str, VerdictKind]:
        largest_losses: dict[str, tuple[int, VerdictKind]] = {}
        for row, posting in self._postings(scope):
            lost, verdict = posting.sums.lost, posting.entry.verdict if posting.entry else None
            if verdict is not None and lost > largest_losses.get(row.id, (0, None))[0]:
                largest_losses[row.id] = (lost, verdict.kind)
        return {id: kind for id, (_, kind) in largest_losses.items() if id in session_ids}

    def _postings(self, scope: LedgerScope) -> Iterator[tuple[SessionRow, Posting]]:
        return _iter_scope(self._log, self._models, scope)


def _iter_scope(log: EventLog, models: Models, scope: LedgerScope) -> Iterator[tuple[SessionRow, Posting]]:
    for row in log.sessions():
        if scope.session_id in (None, row.id):
            for posting in iter_postings(log.read(row.id), models):
                if scope.since <= posting.at < scope.until and (scope.simulated or not posting.is_simulated):
                    yield row, posting


def _sort_sessions(sessions: list[tuple[SessionRow, Sums]], order: SessionOrder) -> list[tuple[SessionRow, Sums]]:
    match order:
        case "lost":
            return sorted(sessions, key=lambda session: (-session[1].lost, -session[1].spent, session[0].id))
        case "spent":
            return sorted(sessions, key=lambda session: (-session[1].spent, -session[1].lost, session[0].id))
        case "newest":
            return sorted(sessions, key=lambda session: (session[0].last_event_at, session[0].id), reverse=True)
