"""Cost and analytics queries on a database: from roll-ups where possible, else from rows, never from the log."""

import datetime
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Literal

import msgspec

from holdfast.errors import StoreError
from holdfast.events.log import Event, SessionRow
from holdfast.events.payloads.calls import UNPRICED
from holdfast.events.payloads.session import SessionStarted, TurnStarted
from holdfast.ledger.analytics.queries import (
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
from holdfast.ledger.analytics.results import FULL_SCOPE, VERDICT_KINDS, RollUpRows, build_amounts
from holdfast.ledger.cache.verdicts import Verdict, VerdictKind
from holdfast.ledger.money import AT_MAX, format_utc_day, to_dollars, utc_day_start
from holdfast.ledger.postings import ACCOUNT_DAYS, DAYS, OUTCOME_DAYS, SESSION_DAYS, RollUp, Sums
from holdfast.stores.sql import analytics_queries as queries
from holdfast.stores.sql.events import Cell, FetchRows, as_int, decode_event_row, decode_session_row
from holdfast.types.usage import Usage

DAY_SECONDS = 86_400
TURN_BATCH_EVENTS = 128  # Most turns fit into one batch.
ALL_SESSIONS = SessionFilter()
NEWEST_FIRST = SessionOrdering()

# Which groupings each roll-up can answer by itself.
DAY_GROUPINGS: frozenset[str] = frozenset({"model", "provider", "day", "none"})
ACCOUNT_GROUPINGS: frozenset[str] = frozenset({"gateway_key", "user", "team", "day", "none"})
SESSION_GROUPINGS: frozenset[str] = frozenset({"session", "parent_session", "is_worker", "day", "none"})
_decode_verdict = msgspec.json.Decoder(Verdict).decode


class SqlRollUpSource:
    """Every query starts with `catch_up`, so that it covers everything written before."""

    def __init__(self, fetch: FetchRows, catch_up: Callable[[], None]) -> None:
        self._fetch = fetch
        self._catch_up = catch_up

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: LedgerScope) -> RollUpRows:
        self._catch_up()
        if scope.session_id is not None:
            query = queries.sum_rows(table, keys, sessions=1)
            rows = self._fetch(query, _row_parameters(table, scope, ((scope.since, scope.until),), scope.session_id))
        else:
            rows = self._read_days(table, keys, scope)
        if not all(_is_roll_up_key(name, cell) for row in rows for name, cell in zip(keys, row, strict=False)):
            raise _damaged_tables_error()
        # What one writer added and another one removed is 0 in the sum, until their rows are merged.
        rows = [row for row in rows if not keys or any(row[len(keys) :])]
        # Averages divide by the number of calls.
        if table is OUTCOME_DAYS and any(as_int(row[len(keys)]) < 1 for row in rows):
            raise _damaged_tables_error()
        return [(row[: len(keys)], row[len(keys) :]) for row in rows]  # type: ignore[misc] # the columns are those of the query

    def _read_days(
        self, table: RollUp, keys: tuple[str, ...], scope: LedgerScope, *ids: str
    ) -> list[tuple[object, ...]]:
        """Whole days from the roll-up, and the first and last day as far as they are in the scope."""
        days = split_days(scope.since, scope.until)
        query = queries.sum_rollups(table, keys, sessions=len(ids))
        rows = self._fetch(query, (days.first, days.end, int(scope.simulated), *ids))
        if days.partial_spans:
            query = queries.sum_rows(table, keys, sessions=len(ids), spans=len(days.partial_spans))
            rows += self._fetch(query, _row_parameters(table, scope, days.partial_spans, *ids))
        return rows

    def sessions(
        self, scope: LedgerScope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        if scope.session_id is not None:
            return self._one_session(scope, scope.session_id)[offset : offset + limit]
        session_rows = self.session_rows(scope, order=order, limit=limit, offset=offset)
        sums_by_session = self.sum_sessions(scope, [row.id for row in session_rows])
        return [(row, sums_by_session[row.id]) for row in session_rows]

    def sum_sessions(self, scope: LedgerScope, session_ids: Sequence[str]) -> dict[str, Sums]:
        """The sums of each of these sessions."""
        sums_by_session = {session_id: Sums() for session_id in session_ids}
        if session_ids:
            for session_id, *amounts in self._read_days(SESSION_DAYS, ("session_id",), scope, *session_ids):
                sums_by_session[str(session_id)] += Sums(*amounts)  # type: ignore[arg-type] # the query casts them to bigint
        return sums_by_session

    def session_rows(
        self, scope: LedgerScope, *, order: SessionOrder, limit: int, offset: int = 0, calls_only: bool = False
    ) -> Sequence[SessionRow]:
        if scope.session_id is not None:
            rows = [row for row, sums in self._one_session(scope, scope.session_id) if sums.calls or not calls_only]
            return rows[offset : offset + limit]
        self._catch_up()
        if self._has_session_sums(scope):
            query = queries.select_sessions_of_all_time(order, calls_only=calls_only)
            return list(map(decode_session_row, self._fetch(query, (int(scope.simulated), limit, offset))))
        spans, parameters = self._session_parameters(scope)
        query = queries.select_session_page(order, spans=spans, calls_only=calls_only)
        return list(map(decode_session_row, self._fetch(query, (*parameters, limit, offset))))

    def count_sessions(self, scope: LedgerScope, *, calls_only: bool = False) -> int:
        if scope.session_id is not None:
            return len(self.session_rows(scope, order="spent", limit=1, calls_only=calls_only))
        self._catch_up()
        if self._has_session_sums(scope):
            query = queries.count_sessions_of_all_time(calls_only=calls_only)
            ((count,),) = self._fetch(query, (int(scope.simulated),))
            return as_int(count)
        spans, parameters = self._session_parameters(scope)
        ((count,),) = self._fetch(queries.count_sessions(spans=spans, calls_only=calls_only), parameters)
        return as_int(count)

    def _has_session_sums(self, scope: LedgerScope) -> bool:
        """Whether the sums in the rows of sessions are those of the scope."""
        if scope.since > 0 or scope.until <= AT_MAX:
            ((first_at, last_at),) = self._fetch(queries.TIME_SPAN, ())
            is_all_time = first_at is None or (scope.since <= first_at and last_at < scope.until)  # type: ignore[operator] # columns of numbers
            if not is_all_time:
                return False
        return scope.simulated or not self._fetch(queries.ANY_MIXED_SESSION, ())

    def _session_parameters(self, scope: LedgerScope) -> tuple[int, tuple[Cell, ...]]:
        """How many parts of days count, and the parameters of a query over all sessions."""
        days = split_days(scope.since, scope.until)
        parameters: tuple[Cell, ...] = (days.first, days.end, int(scope.simulated))
        if days.partial_spans:
            parameters += _row_parameters(SESSION_DAYS, scope, days.partial_spans)
        return len(days.partial_spans), parameters

    def _one_session(self, scope: LedgerScope, session_id: str) -> list[tuple[SessionRow, Sums]]:
        sums = sum((Sums(*amounts) for _, amounts in self.rows(SESSION_DAYS, (), scope)), Sums())
        rows = map(decode_session_row, self._fetch(queries.select_session_rows(1), (session_id,)))
        return [(row, sums) for row in rows if sums.calls or sums.spent]

    def unpriced(self, scope: LedgerScope) -> tuple[UnpricedUsage, ...]:
        self._catch_up()
        session = () if scope.session_id is None else (scope.session_id,)
        rows = self._fetch(queries.sum_unpriced(session=bool(session)), (*_scope_parameters(scope), UNPRICED, *session))
        return tuple(
            UnpricedUsage(str(session_id), str(model), as_int(calls), Usage(*map(as_int, usage)))
            for session_id, model, calls, *usage in rows
        )

    def worst_verdicts(self, session_ids: Sequence[str], scope: LedgerScope) -> dict[str, VerdictKind]:
        if not session_ids:
            return {}
        query = queries.select_worst_verdicts(len(session_ids))
        rows = self._fetch(query, (scope.since, scope.until, int(scope.simulated), *session_ids))
        return {str(session_id): VERDICT_KINDS[kind] for session_id, kind in rows}


def _is_roll_up_key(name: str, cell: object) -> bool:
    match name:
        case "latency_bits":
            return isinstance(cell, int)
        case "kind":
            return cell in VERDICT_KINDS
        case "day":
            with suppress(TypeError, ValueError):
                datetime.date.fromisoformat(cell)  # type: ignore[arg-type] # another type raises TypeError
                return True
            return False
        case _:
            return isinstance(cell, str)


def _damaged_tables_error() -> StoreError:
    return StoreError("the roll-up tables are damaged: `holdfast db rebuild` rebuilds them from the log")


class DayWindow(msgspec.Struct, frozen=True):
    """The whole days from `first` up to but excluding `end`, and the partial days as time spans."""

    first: str
    end: str
    partial_spans: tuple[tuple[float, float], ...]


def split_days(since: float, until: float) -> DayWindow:
    """Splits a time window into whole days and parts of days."""
    first, first_start = _find_day(since)
    last, last_start = _find_day(until)
    if first_start == last_start:
        return DayWindow(first, first, ((since, until),))
    partial_spans = []
    if since > first_start:
        # Sorts after this day and before the next one, because ~ comes after every digit.
        first = f"{first}~"
        partial_spans.append((since, first_start + DAY_SECONDS))
    if last_start < until <= AT_MAX:
        partial_spans.append((last_start, until))
    return DayWindow(first, last if until <= AT_MAX else f"{last}~", tuple(partial_spans))


def _find_day(at: float) -> tuple[str, float]:
    day = format_utc_day(min(max(at, 0.0), AT_MAX))
    return day, utc_day_start(day)


def _row_parameters(
    table: RollUp, scope: LedgerScope, spans: Sequence[tuple[float, float]], *ids: str
) -> tuple[Cell, ...]:
    table_parameters: tuple[Cell, ...] = (*chain.from_iterable(spans), int(scope.simulated), *ids)
    return table_parameters * len(queries.ROLLUP_SOURCES[table.name])


class AnalyticsQueries:
    """Every result is what the events add up to at the time of the query. All of them ignore a scope's session."""

    def __init__(self, fetch: FetchRows, catch_up: Callable[[], None]) -> None:
        self._fetch = fetch
        self._tables = SqlRollUpSource(fetch, catch_up)
        self._catch_up = catch_up

    def groups(
        self, group_by: GroupBy, scope: LedgerScope = FULL_SCOPE, narrowed: GroupFilter = NO_FILTER
    ) -> tuple[Group, ...]:
        """In no particular order. `none` gives exactly one group, otherwise only groups with calls or spending.

        From roll-ups if they distinguish such groups, otherwise from the rows.
        """
        if group_by in DAY_GROUPINGS and narrowed.workers and narrowed.filtered_fields <= {"model", "provider"}:
            rows = self._group_days(group_by, scope, narrowed)
        elif group_by in ACCOUNT_GROUPINGS and narrowed.workers and _filters_accounts(narrowed):
            rows = self._group_accounts(group_by, scope, narrowed)
        else:
            rows = self._group_rows(group_by, scope, narrowed)
        sums_by_key: dict[object, Sums] = {0: Sums()} if group_by == "none" else {}
        for key, sums in rows:
            sums_by_key[key] = sums_by_key.get(key, Sums()) + sums
        return tuple(Group(format_group_name(group_by, key), build_amounts(sums)) for key, sums in sums_by_key.items())

    def _group_days(self, group_by: GroupBy, scope: LedgerScope, filter_: GroupFilter) -> Iterable[tuple[object, Sums]]:
        for (provider, model, day), sums in self._tables.rows(DAYS, ("provider", "model", "day"), scope):
            if filter_.model in (None, model) and filter_.provider in (None, provider):
                keys: dict[str, object] = {"provider": provider, "model": model, "day": day, "none": 0}
                yield keys[group_by], Sums(*sums)

    def _group_accounts(
        self, group_by: GroupBy, scope: LedgerScope, filter_: GroupFilter
    ) -> Iterable[tuple[object, Sums]]:
        """Filtered, or with the remainder of the totals as the group without an account."""
        with_account = Sums()
        columns = ("day", "key_id", "user_id", "team_id")
        for (day, key_id, user_id, team_id), cells in self._tables.rows(ACCOUNT_DAYS, columns, scope):
            keys: dict[str, object] = {"gateway_key": key_id, "user": user_id, "team": team_id, "day": day, "none": 0}
            if all(getattr(filter_, name) == keys[name] for name in filter_.filtered_fields):
                with_account += Sums(*cells)
                yield keys[group_by], Sums(*cells)
        if not filter_.filtered_fields:
            total = sum((Sums(*cells) for _, cells in self._tables.rows(DAYS, (), scope)), Sums())
            remainder = total - with_account
            if remainder.entries:
                yield "", remainder

    def _group_rows(self, group_by: GroupBy, scope: LedgerScope, filter_: GroupFilter) -> Iterable[tuple[object, Sums]]:
        self._catch_up()
        simulated, filter_cells = int(scope.simulated), queries.filter_parameters(filter_)
        spans: Sequence[tuple[float, float]] = ((scope.since, scope.until),)
        rows: list[tuple[object, ...]] = []
        if group_by in SESSION_GROUPINGS and filter_.filtered_fields <= {"session"}:
            days = split_days(scope.since, scope.until)
            spans = days.partial_spans
            query = queries.group_session_days(group_by, filter_)
            rows += self._fetch(query, (days.first, days.end, simulated, *filter_cells))
        if spans:
            table_parameters: tuple[Cell, ...] = (*chain.from_iterable(spans), simulated)
            query = queries.group_rows(group_by, filter_, spans=len(spans))
            rows += self._fetch(query, (*table_parameters * len(queries.ROLLUP_SOURCES[DAYS.name]), *filter_cells))
        return ((key, Sums(*sums)) for key, *sums in rows)  # type: ignore[arg-type] # the query casts them to bigint

    def unpriced_groups(
        self, group_by: GroupBy, scope: LedgerScope = FULL_SCOPE, narrowed: GroupFilter = NO_FILTER
    ) -> dict[GroupName, UnpricedSums]:
        """The calls of each group that have no price; groups without such calls are left out."""
        self._catch_up()
        query = queries.group_unpriced(group_by, narrowed)
        rows = self._fetch(query, (*_scope_parameters(scope), UNPRICED, *queries.filter_parameters(narrowed)))
        return {
            format_group_name(group_by, key): UnpricedSums(as_int(calls), as_int(tokens)) for key, calls, tokens in rows
        }

    def failures(self, scope: LedgerScope = FULL_SCOPE) -> dict[str, int]:
        """The number of failed calls by error class."""
        counts: dict[str, int] = {}
        for (outcome,), (calls, *_) in self._tables.rows(OUTCOME_DAYS, ("outcome",), scope):
            if outcome != "completed":
                counts[str(outcome)] = counts.get(str(outcome), 0) + calls
        return counts

    def call_failures(
        self, scope: LedgerScope = FULL_SCOPE, *, outcome: str | None = None, limit: int, skip: int = 0
    ) -> tuple[CallFailure, ...]:
        """The calls that failed, were cut or could not be read, the newest first; with `outcome`, only such."""
        self._catch_up()
        chosen = () if outcome is None else (outcome,)
        part = (*_scope_parameters(scope), *chosen, limit + skip)
        return tuple(
            CallFailure(decode_session_row(columns), at, str(model), str(outcome), as_int(latency_ms), as_int(retries))  # type: ignore[arg-type] # a column of numbers
            for *columns, at, model, outcome, latency_ms, retries in self._fetch(
                queries.select_call_failures(outcome=outcome is not None), (*part, *part, limit, skip)
            )
        )

    def latencies(self, scope: LedgerScope = FULL_SCOPE) -> dict[str, dict[int, int]]:
        """For each model, the number of calls by latency in milliseconds."""
        self._catch_up()
        counts_by_model: dict[str, dict[int, int]] = {}
        for model, latency_ms, calls in self._fetch(queries.LATENCIES, _scope_parameters(scope)):
            counts_by_model.setdefault(str(model), {})[as_int(latency_ms)] = as_int(calls)
        return counts_by_model

    def usage_by_size(self, limits: Sequence[int], scope: LedgerScope = FULL_SCOPE) -> tuple[SizedUsage, ...]:
        """Calls and usage by model and by how many of the ascending `limits` the prompt exceeded."""
        self._catch_up()
        rows = self._fetch(queries.sum_usage_by_size(limits), _scope_parameters(scope))
        sized = [
            SizedUsage(str(model), as_int(sizes), as_int(calls), Usage(*map(as_int, usage)))
            for model, sizes, calls, *usage in rows
        ]
        return tuple(sorted(sized, key=lambda row: (row.model, row.limits_exceeded)))

    def cache_breaks(
        self,
        scope: LedgerScope = FULL_SCOPE,
        *,
        kind: VerdictKind | None = None,
        component: str | None = None,
        limit: int,
        skip: int,
    ) -> tuple[CacheBreakCall, ...]:
        """Calls that missed the cache, the largest loss first."""
        self._catch_up()
        query = queries.select_cache_breaks(kind=kind is not None, component=component is not None)
        filter_cells = [value for value in (kind, component) if value is not None]
        rows = self._fetch(query, (*_scope_parameters(scope), *filter_cells, limit, skip))
        return tuple(map(_build_broken_call, rows))

    def skill_loads(self, scope: LedgerScope = FULL_SCOPE) -> tuple[SkillLoad, ...]:
        """In log order."""
        exclusion = () if scope.simulated else (queries.SIMULATED_MARK,)
        query = queries.select_skill_loads(simulated=scope.simulated)
        loads = _decode_events(self._fetch(query, (scope.since, scope.until, *exclusion)))
        uses = _decode_events(self._fetch(queries.select_skill_uses(), (scope.since, scope.until)))
        return find_skill_loads([*loads, *uses])

    def session_costs(
        self, *, order: SessionCostOrder, limit: int, skip: int, simulated: bool = False
    ) -> tuple[SessionCost, ...]:
        """One page of all sessions."""
        self._catch_up()
        query = queries.select_session_costs(order, simulated=simulated)
        rows = self._fetch(query, (*(() if simulated else (queries.SIMULATED_MARK,)), limit, skip))
        ids = [str(columns[0]) for columns in rows]
        if not ids:
            return ()
        models = {str(id): model for id, model in self._fetch(queries.select_last_models(len(ids)), ids)}
        turns = {str(id): count for id, count in self._fetch(queries.count_turns(len(ids)), ids)}
        paths: dict[str, str | None] = {}
        for event in _decode_events(self._fetch(queries.select_session_starts(len(ids)), ids)):
            if isinstance(event.payload, SessionStarted):
                paths.setdefault(event.session_id, event.payload.workspace_path)
        costs = []
        for *columns, spent in rows:
            row = decode_session_row(columns)
            model, turn_count = str(models.get(row.id, row.model)), as_int(turns.get(row.id, 0))
            costs.append(SessionCost(row, to_dollars(as_int(spent)), model, turn_count, paths.get(row.id)))
        return tuple(costs)

    def last_verdicts(self, session_ids: Sequence[str]) -> dict[str, Verdict]:
        """The verdict on the last call of each of these sessions that has one; at most `PAGE_MAX` sessions."""
        if not session_ids:
            return {}
        self._catch_up()
        rows = self._fetch(queries.select_last_verdicts(len(session_ids)), session_ids)
        return {str(session_id): _decode_call_verdict(verdict) for session_id, verdict in rows}

    def find_session_rows(self, session_ids: Sequence[str]) -> tuple[SessionRow, ...]:
        """The rows of those of these sessions that exist; at most `PAGE_MAX` sessions."""
        if not session_ids:
            return ()
        rows = self._fetch(queries.select_session_rows(len(session_ids)), session_ids)
        return tuple(map(decode_session_row, rows))

    def find_sessions(
        self, filter_: SessionFilter = ALL_SESSIONS, ordering: SessionOrdering = NEWEST_FIRST, *, limit: int
    ) -> tuple[ListedSession, ...]:
        """One page of the sessions that match."""
        self._catch_up()
        _, cells = queries.session_conditions(filter_)
        after = () if ordering.after is None else (ordering.after.value, ordering.after.id)
        rows = self._fetch(queries.select_sessions(filter_, ordering), (*cells, *after, limit))
        listed = [(decode_session_row(columns), value) for *columns, value in rows]
        if not listed:
            return ()
        ids = [row.id for row, _ in listed]
        scope = LedgerScope(simulated=True)
        sums = self._tables.sum_sessions(scope, ids)
        worst = self._tables.worst_verdicts(ids, scope)
        unpriced = {
            str(id): as_int(calls) for id, calls in self._fetch(queries.count_unpriced(len(ids)), (UNPRICED, *ids))
        }
        models = {str(id): str(model) for id, model in self._fetch(queries.select_last_models(len(ids)), ids)}
        return tuple(
            ListedSession(
                row,
                models.get(row.id, row.model),
                build_amounts(sums[row.id]),
                worst.get(row.id),
                unpriced.get(row.id, 0),
                SessionPosition(value, row.id),  # type: ignore[arg-type] # a column of numbers
            )
            for row, value in listed
        )

    def count_matches(self, filter_: SessionFilter = ALL_SESSIONS) -> int:
        """How many sessions match."""
        _, cells = queries.session_conditions(filter_)
        ((count,),) = self._fetch(queries.count_matches(filter_), cells)
        return as_int(count)

    def read_shares(
        self, by: Literal["client", "gateway_key"], scope: LedgerScope = FULL_SCOPE
    ) -> tuple[ReadShare, ...]:
        """By subject and day, from the first day of the scope on; calls without a client or key are left out."""
        self._catch_up()
        first_day, _ = _find_day(scope.since)
        rows = self._fetch(queries.sum_read_shares(by), (first_day, int(scope.simulated)))
        return tuple(ReadShare(str(subject), str(day), *map(as_int, sums)) for subject, day, *sums in rows)

    def turn_events(self, turn_id: str) -> tuple[Event, ...]:
        """The events of a turn in order; empty if there is no such turn."""
        for seq, session_id in self._fetch(queries.TURN_START, (turn_id,)):
            return tuple(self._events_of_turn(turn_id, str(session_id), as_int(seq)))
        return ()

    def _events_of_turn(self, turn_id: str, session_id: str, seq: int) -> Iterable[Event]:
        """Turns of a session do not overlap, so a turn ends where the next one starts."""
        while batch := self._fetch(queries.EVENTS_FROM, (session_id, seq, TURN_BATCH_EVENTS)):
            seq = as_int(batch[-1][0]) + 1
            for event in _decode_events(columns for _, *columns in batch):
                if isinstance(event.payload, TurnStarted) and event.id != turn_id:
                    return
                if turn_id in (event.id, event.turn_id):
                    yield event


def _filters_accounts(filter_: GroupFilter) -> bool:
    """Whether the filter names accounts only, and none of them is empty: those are not in the roll-up."""
    return filter_.filtered_fields <= {"gateway_key", "user", "team"} and all(queries.filter_parameters(filter_))


def _scope_parameters(scope: LedgerScope) -> tuple[Cell, ...]:
    return scope.since, scope.until, int(scope.simulated)


def _decode_events(rows: Iterable[Sequence[object]]) -> Iterable[Event]:
    for columns in rows:
        # Skip events of a newer version: this one cannot use them.
        with suppress(StoreError):
            yield decode_event_row(columns)


def _build_broken_call(columns: Sequence[object]) -> CacheBreakCall:
    session_id, name, number, at, model, verdict = columns
    decoded = _decode_call_verdict(verdict)
    if not isinstance(at, float):
        raise _damaged_tables_error()
    name = None if name is None else str(name)
    return CacheBreakCall(str(session_id), name, as_int(number), at, str(model), decoded)


def _decode_call_verdict(text: object) -> Verdict:
    try:
        return _decode_verdict(str(text))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _damaged_tables_error() from error
