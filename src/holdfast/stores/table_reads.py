"""How the tables of a database are asked: whole days from the roll-ups, a part of a day from the rows of its calls."""

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.events.log import SessionRow
from holdfast.ledger.answers import KINDS, Rows
from holdfast.ledger.books import Entry
from holdfast.ledger.money import AT_MAX, day_of, day_start
from holdfast.ledger.postings import Sums
from holdfast.ledger.rollups import SESSION_DAYS, RollUp
from holdfast.ledger.tables import Scope, SessionOrder
from holdfast.ledger.verdicts import VerdictKind
from holdfast.stores.queries import Cell
from holdfast.stores.rows import session_of
from holdfast.stores.table_queries import ARMS, TableQueries
from holdfast.stores.table_rows import entry_of

DAY_SECONDS = 86_400
_NEVER = 1e300


class Fetch(Protocol):
    def __call__(self, query: str, parameters: Sequence[Cell], /) -> list[tuple[object, ...]]: ...


class TableReads:
    """Every answer begins with `catch_up`, after which all is entered that was written before."""

    def __init__(self, fetch: Fetch, queries: TableQueries, catch_up: Callable[[], None]) -> None:
        self._fetch = fetch
        self._queries = queries
        self._catch_up = catch_up

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: Scope) -> Rows:
        self._catch_up()
        if scope.session_id is not None:
            query = self._queries.within(table, keys, sessions=1)
            found = self._fetch(query, _within(table, scope, _NEVER, scope.session_id))
        else:
            found = self._from_day(table, keys, scope)
        return [(row[: len(keys)], row[len(keys) :]) for row in found]  # type: ignore[misc] # as the query says

    def _from_day(self, table: RollUp, keys: tuple[str, ...], scope: Scope, *ids: str) -> list[tuple[object, ...]]:
        """Whole days, and the first one from a moment on."""
        first, until = _first_day(scope.since)
        query = self._queries.rolled_up(table, keys, sessions=len(ids))
        found = self._fetch(query, (first, int(scope.simulated), *ids))
        if until is not None:
            query = self._queries.within(table, keys, sessions=len(ids))
            found += self._fetch(query, _within(table, scope, until, *ids))
        return found

    def sessions(
        self, scope: Scope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        self._catch_up()
        if scope.session_id is not None:
            return self._one_session(scope, scope.session_id)[offset : offset + limit]
        first, until = _first_day(scope.since)
        parameters: tuple[Cell, ...] = (first, int(scope.simulated))
        if until is not None:
            parameters += _within(SESSION_DAYS, scope, until)
        query = self._queries.session_page(order, partly=until is not None)
        found = list(map(session_of, self._fetch(query, (*parameters, limit, offset))))
        sums = {row.id: Sums() for row in found}
        if found:
            for session_id, *amounts in self._from_day(SESSION_DAYS, ("session_id",), scope, *sums):
                sums[str(session_id)] += Sums(*amounts)  # type: ignore[arg-type] # as the query says
        return [(row, sums[row.id]) for row in found]

    def _one_session(self, scope: Scope, session_id: str) -> list[tuple[SessionRow, Sums]]:
        sums = sum((Sums(*amounts) for _, amounts in self.rows(SESSION_DAYS, (), scope)), Sums())
        rows = map(session_of, self._fetch(self._queries.session, (session_id,)))
        return [(row, sums) for row in rows if sums.calls or sums.spent]

    def worst(self, session_ids: Sequence[str], scope: Scope) -> dict[str, VerdictKind]:
        if not session_ids:
            return {}
        query = self._queries.worst(len(session_ids))
        found = self._fetch(query, (scope.since, int(scope.simulated), *session_ids))
        return {str(session_id): KINDS[kind] for session_id, kind in found}

    def calls(self, session_id: str, *, after: int, limit: int) -> Sequence[Entry]:
        self._catch_up()
        return [entry_of(row) for row in self._fetch(self._queries.calls, (session_id, after, limit))]


def _within(table: RollUp, scope: Scope, until: float, *ids: str) -> tuple[Cell, ...]:
    arm: tuple[Cell, ...] = (scope.since, until, int(scope.simulated), *ids)
    return arm * len(ARMS[table.name])


def _first_day(since: float) -> tuple[str, float | None]:
    """The least day that counts wholly; the end of the one before it, if that counts from `since` on."""
    day = day_of(min(max(since, 0.0), AT_MAX))
    start = day_start(day)
    if since <= start:
        return day, None
    # Behind this day in the order of texts, and before the next one.
    return f"{day}~", start + DAY_SECONDS
