"""Cost queries on a database: whole days from the roll-ups, parts of a day from call rows."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

import msgspec

from holdfast.events.log import SessionRow
from holdfast.ledger.answers import KINDS, Rows
from holdfast.ledger.money import AT_MAX, day_of, day_start
from holdfast.ledger.postings import Sums
from holdfast.ledger.rollups import SESSION_DAYS, RollUp
from holdfast.ledger.tables import Scope, SessionOrder
from holdfast.ledger.verdicts import VerdictKind
from holdfast.stores.queries import Cell
from holdfast.stores.rows import session_of
from holdfast.stores.table_queries import ARMS, TableQueries

DAY_SECONDS = 86_400


class Fetch(Protocol):
    def __call__(self, query: str, parameters: Sequence[Cell], /) -> list[tuple[object, ...]]: ...


class TableReads:
    """Every query starts with `catch_up`, so that it covers everything written before."""

    def __init__(self, fetch: Fetch, queries: TableQueries, catch_up: Callable[[], None]) -> None:
        self._fetch = fetch
        self._queries = queries
        self._catch_up = catch_up

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: Scope) -> Rows:
        self._catch_up()
        if scope.session_id is not None:
            query = self._queries.within(table, keys, sessions=1)
            rows = self._fetch(query, _row_parameters(table, scope, ((scope.since, scope.until),), scope.session_id))
        else:
            rows = self._read_days(table, keys, scope)
        return [(row[: len(keys)], row[len(keys) :]) for row in rows]  # type: ignore[misc] # the columns are those of the query

    def _read_days(self, table: RollUp, keys: tuple[str, ...], scope: Scope, *ids: str) -> list[tuple[object, ...]]:
        """Whole days from the roll-up, and the first and last day as far as they are in the scope."""
        days = days_of(scope.since, scope.until)
        query = self._queries.rolled_up(table, keys, sessions=len(ids))
        rows = self._fetch(query, (days.first, days.behind, int(scope.simulated), *ids))
        if days.partly:
            query = self._queries.within(table, keys, sessions=len(ids), spans=len(days.partly))
            rows += self._fetch(query, _row_parameters(table, scope, days.partly, *ids))
        return rows

    def sessions(
        self, scope: Scope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        self._catch_up()
        if scope.session_id is not None:
            return self._one_session(scope, scope.session_id)[offset : offset + limit]
        days = days_of(scope.since, scope.until)
        parameters: tuple[Cell, ...] = (days.first, days.behind, int(scope.simulated))
        if days.partly:
            parameters += _row_parameters(SESSION_DAYS, scope, days.partly)
        query = self._queries.session_page(order, spans=len(days.partly))
        session_rows = list(map(session_of, self._fetch(query, (*parameters, limit, offset))))
        sums_by_session = {row.id: Sums() for row in session_rows}
        if session_rows:
            for session_id, *amounts in self._read_days(SESSION_DAYS, ("session_id",), scope, *sums_by_session):
                sums_by_session[str(session_id)] += Sums(*amounts)  # type: ignore[arg-type] # the query casts them to bigint
        return [(row, sums_by_session[row.id]) for row in session_rows]

    def _one_session(self, scope: Scope, session_id: str) -> list[tuple[SessionRow, Sums]]:
        sums = sum((Sums(*amounts) for _, amounts in self.rows(SESSION_DAYS, (), scope)), Sums())
        rows = map(session_of, self._fetch(self._queries.session, (session_id,)))
        return [(row, sums) for row in rows if sums.calls or sums.spent]

    def worst(self, session_ids: Sequence[str], scope: Scope) -> dict[str, VerdictKind]:
        if not session_ids:
            return {}
        query = self._queries.worst(len(session_ids))
        rows = self._fetch(query, (scope.since, scope.until, int(scope.simulated), *session_ids))
        return {str(session_id): KINDS[kind] for session_id, kind in rows}


class Days(msgspec.Struct, frozen=True):
    """The whole days from `first` up to but excluding `end`, and the partial days as time spans."""

    first: str
    behind: str
    partly: tuple[tuple[float, float], ...]


def days_of(since: float, until: float) -> Days:
    """Splits a time window into whole days and parts of days."""
    first, first_start = _find_day(since)
    last, last_start = _find_day(until)
    if first_start == last_start:
        return Days(first, first, ((since, until),))
    partial_spans = []
    if since > first_start:
        # Sorts after this day and before the next one, because ~ comes after every digit.
        first = f"{first}~"
        partial_spans.append((since, first_start + DAY_SECONDS))
    if last_start < until <= AT_MAX:
        partial_spans.append((last_start, until))
    return Days(first, last if until <= AT_MAX else f"{last}~", tuple(partial_spans))


def _find_day(at: float) -> tuple[str, float]:
    day = day_of(min(max(at, 0.0), AT_MAX))
    return day, day_start(day)


def _row_parameters(table: RollUp, scope: Scope, spans: Sequence[tuple[float, float]], *ids: str) -> tuple[Cell, ...]:
    table_parameters: tuple[Cell, ...] = (*chain.from_iterable(spans), int(scope.simulated), *ids)
    return table_parameters * len(ARMS[table.name])
