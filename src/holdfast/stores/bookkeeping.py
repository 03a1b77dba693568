"""How events are entered into the tables in the transaction that writes them.

What is remembered of a session is small, and is made anew from the log where another program has written to the
session in between. A session of which not everything was entered, by an older version or a rebuild that was stopped,
is entered from its first event on as soon as it goes on, or is asked for.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.errors import StoreError
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.ledger.books import Books
from holdfast.ledger.postings import LEDGER_VERSION, Posting, posted
from holdfast.ledger.rollups import ROLLUPS, Totals
from holdfast.stores.queries import Cell
from holdfast.stores.rows import event_of
from holdfast.stores.table_queries import ARMS, TableQueries
from holdfast.stores.table_rows import TABLES, TableRow, row_of
from holdfast.stores.writer import Append

SESSIONS_MAX = 1_000
"""How many sessions are remembered."""

PAGE_EVENTS = 1_000
_SESSIONS_AT_ONCE = 200
_ALWAYS = (0.0, float("1e300"), 1)
_IMAGE = '%"image"%'


class Desk(Protocol):
    """The tables inside of a transaction."""

    def fetch(self, query: str, parameters: Sequence[Cell] = ..., /) -> list[tuple[object, ...]]: ...

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None: ...


class _Opened:
    """What is remembered of a session, and up to which event."""

    __slots__ = ("books", "count", "last_id")

    def __init__(self, books: Books, count: int, last_id: object) -> None:
        self.books = books
        self.count = count
        self.last_id = last_id


class Bookkeeper:
    """Between `begin` and `commit` stands one transaction; what was not committed is forgotten by the next `begin`."""

    def __init__(self, models: Models, queries: TableQueries, *, sessions_max: int = SESSIONS_MAX) -> None:
        self._models = models
        self._queries = queries
        self._sessions_max = sessions_max
        self._kept: OrderedDict[str, _Opened] = OrderedDict()
        self.begin()

    def begin(self) -> None:
        self._open: dict[str, _Opened] = {}
        self._anew: set[str] = set()
        self._taken_out = False
        self._totals = Totals()
        self._rows: dict[type[TableRow], list[TableRow]] = {kind: [] for kind in TABLES}

    def open(self, desk: Desk, appends: Sequence[Append], added: Sequence[SessionRow]) -> None:
        """Get ready for events whose sessions' rows were written and that are not yet on the log themselves."""
        matter = {event.session_id for job in appends for event in job.posted}
        counts = {
            row.id: row.event_count
            for row in added
            if row.id not in self._open and (row.id in matter or row.id in self._kept)
        }
        wanted = list(counts)
        for start in range(0, len(wanted), _SESSIONS_AT_ONCE):
            some = wanted[start : start + _SESSIONS_AT_ONCE]
            for session_id, count, entered, last_id in desk.fetch(self._queries.states(len(some)), some):
                assert isinstance(session_id, str)
                assert isinstance(count, int)
                before = count - counts[session_id]
                kept = self._kept.get(session_id)
                if kept is not None and (kept.count, kept.last_id, entered) == (before, last_id, count):
                    self._open[session_id] = _Opened(kept.books, before, last_id)
                elif session_id in matter:
                    self._open[session_id] = self._made_anew(desk, session_id, before, last_id, whole=entered != count)

    def _made_anew(self, desk: Desk, session_id: str, count: int, last_id: object, *, whole: bool) -> _Opened:
        if whole:
            self.take_out(desk, session_id)
            self._anew.add(session_id)
        books = Books()
        if count:
            for event in self._log(desk, session_id):
                books, posting = posted(books, event, self._models)
                if posting is not None and whole:
                    self._post(posting)
        return _Opened(books, count, last_id)

    def _log(self, desk: Desk, session_id: str) -> Iterator[Event]:
        """What matters of a session's log."""
        seq = 0
        while page := desk.fetch(self._queries.to_post, (session_id, seq, _IMAGE, PAGE_EVENTS)):
            for place, *columns in page:
                assert isinstance(place, int)
                seq = place
                # A damaged event must not keep its session from going on.
                with suppress(StoreError):
                    yield event_of(columns)

    def enter(self, appends: Sequence[Append]) -> None:
        """Enter what is on the log now; nothing of it is written yet."""
        for job in appends:
            for event in job.posted:
                opened = self._open[event.session_id]
                opened.books, posting = posted(opened.books, event, self._models)
                if posting is not None:
                    self._post(posting)
            for more in job.tallies:
                known = self._open.get(more.id)
                if known is not None:
                    known.count += more.event_count
                    known.last_id = next(row.id for row in reversed(job.rows) if row.session_id == more.id)

    def _post(self, posting: Posting) -> None:
        self._totals.post((posting,))
        row = row_of(posting)
        self._rows[type(row)].append(row)

    def take_out(self, desk: Desk, session_id: str) -> None:
        """Remove a session's rows, and its amounts from all sums."""
        self.write(desk)
        self._open.pop(session_id, None)
        for table in ROLLUPS:
            query = self._queries.within(table, table.keys, sessions=1)
            for row in desk.fetch(query, (*_ALWAYS, session_id) * len(ARMS[table.name])):
                key, sums = row[: len(table.keys)], row[len(table.keys) :]
                self._totals.add(table.name, tuple(map(_cell, key)), tuple(-_whole(sum) for sum in sums))
                self._taken_out = True
        for statement in self._queries.forget:
            desk.write(statement, [(session_id,)])

    def catch_up(self, desk: Desk, session_ids: Iterable[str]) -> None:
        """Enter those sessions wholly that are not."""
        for session_id in session_ids:
            for _, count, entered, last_id in desk.fetch(self._queries.states(1), (session_id,)):
                if session_id not in self._anew and count != entered:
                    assert isinstance(count, int)
                    self._open[session_id] = self._made_anew(desk, session_id, count, last_id, whole=True)

    def write(self, desk: Desk) -> None:
        """Write what was entered; always in one order, or two programs could wait for each other."""
        for kind, rows in self._rows.items():
            if rows:
                desk.write(self._queries.insert(TABLES[kind], kind.__struct_fields__), [astuple(row) for row in rows])
                rows.clear()
        for table in ROLLUPS:
            sums = self._totals.rows(table)
            if sums:
                keys = sorted(sums)
                desk.write(self._queries.add(table), [key + sums[key] for key in keys])
                if self._taken_out:
                    desk.write(self._queries.drop_empty(table), keys)
        self._totals.clear()
        self._taken_out = False
        if self._anew:
            desk.write(self._queries.mark_entered, [(session_id,) for session_id in sorted(self._anew)])
            self._anew.clear()

    def commit(self) -> None:
        """What was written holds; it is remembered for those sessions that were seen last."""
        for session_id, opened in self._open.items():
            self._kept[session_id] = opened
            self._kept.move_to_end(session_id)
        while len(self._kept) > self._sessions_max:
            self._kept.popitem(last=False)

    def restart(self, desk: Desk) -> None:
        """Empty the tables: every session is to be entered anew. Nobody else may be writing."""
        self.begin()
        self._kept.clear()
        for statement in (*self._queries.empty, self._queries.unenter):
            desk.write(statement, [()])
        desk.write(self._queries.set_version, [(LEDGER_VERSION,)])

    def is_current(self, desk: Desk) -> bool:
        """Whether the tables were made by the rules of this version."""
        return desk.fetch(self._queries.version) == [(LEDGER_VERSION,)]


def _cell(value: object) -> str | int:
    assert isinstance(value, str | int)
    return value


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
