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
from holdfast.stores.queries import SESSION_COLUMNS, Cell
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
        simulated, arms = int(scope.simulated), len(ARMS[table.name])
        if scope.session_id is not None:
            query = self._queries.within(table, keys, session=True)
            found = self._fetch(query, (scope.since, _NEVER, simulated, scope.session_id) * arms)
        else:
            first, until = _first_day(scope.since)
            found = self._fetch(self._queries.rolled_up(table, keys), (first, simulated))
            if until is not None:
                query = self._queries.within(table, keys, session=False)
                found += self._fetch(query, (scope.since, until, simulated) * arms)
        return [(row[: len(keys)], row[len(keys) :]) for row in found]  # type: ignore[misc] # as the query says

    def sessions(
        self, scope: Scope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        self._catch_up()
        simulated, arms = int(scope.simulated), len(ARMS[SESSION_DAYS.name])
        first, until = _first_day(scope.since)
        parameters: tuple[Cell, ...]
        if scope.session_id is not None:
            parameters = (scope.since, _NEVER, simulated, scope.session_id) * arms
        else:
            parameters = (first, simulated) + ((scope.since, until, simulated) * arms if until is not None else ())
        query = self._queries.session_page(order, partly=until is not None, session=scope.session_id is not None)
        width = len(SESSION_COLUMNS)
        return [
            (session_of(row[:width]), Sums(*row[width:]))  # type: ignore[arg-type] # as the query says
            for row in self._fetch(query, (*parameters, limit, offset))
        ]

    def worst(self, session_ids: Sequence[str], scope: Scope) -> dict[str, VerdictKind]:
        if not session_ids:
            return {}
        query = self._queries.worst(len(session_ids))
        found = self._fetch(query, (scope.since, int(scope.simulated), *session_ids))
        return {str(session_id): KINDS[kind] for session_id, kind in found}

    def calls(self, session_id: str, *, after: int, limit: int) -> Sequence[Entry]:
        self._catch_up()
        return [entry_of(row) for row in self._fetch(self._queries.calls, (session_id, after, limit))]


def _first_day(since: float) -> tuple[str, float | None]:
    """The least day that counts wholly; the end of the one before it, if that counts from `since` on."""
    day = day_of(min(max(since, 0.0), AT_MAX))
    start = day_start(day)
    if since <= start:
        return day, None
    # Behind this day in the order of texts, and before the next one.
    return f"{day}~", start + DAY_SECONDS
