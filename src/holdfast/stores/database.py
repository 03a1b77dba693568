"""A log in a database, whatever the engine: appends through one writer, reads a page at a time."""

import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import msgspec

from holdfast.errors import StoreError, UserError
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.ledger.answers import Answers
from holdfast.ledger.figures import Figures
from holdfast.ledger.postings import matters
from holdfast.ledger.tables import Tables
from holdfast.stores.figure_reads import FigureReads
from holdfast.stores.instructions_records import DatabaseInstructions
from holdfast.stores.instructions_tables import InstructionTables
from holdfast.stores.queries import Cell, Queries
from holdfast.stores.record_queries import RecordQueries
from holdfast.stores.records import Changes, DatabaseRecords
from holdfast.stores.rows import event_of, is_text, rows_of, session_of, tallies
from holdfast.stores.table_queries import TableQueries
from holdfast.stores.table_reads import TableReads
from holdfast.stores.writer import Append, Delete, Enter, Prune, Writer

READ_BATCH_EVENTS = 128
SESSIONS_AT_ONCE = 500

_ROWS_MAX = 2**62  # More than there are, and a number that every engine knows.


class Reads(Protocol):
    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        """All rows of a query; none if a parameter is text that no database can hold."""

    def close(self) -> None: ...


class Asked(msgspec.Struct, frozen=True):
    """The queries of an engine."""

    log: Queries
    tables: TableQueries
    version: str
    size_bytes: str


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What a database holds; `to_enter` sessions are not in the tables yet."""

    name: str
    version: int
    size_bytes: int
    sessions: int
    events: int
    oldest_at: float | None
    newest_at: float | None
    calls: int
    to_enter: int


class DatabaseLog:
    """An append reports every failure through its future; everything else raises.

    After a write failed for good the store takes no more events until it is opened again, because the log
    would have a gap; what is on it can still be read.
    """

    def __init__(
        self,
        name: str,
        asked: Asked,
        reads: Reads,
        writer: Writer,
        *,
        event_bytes_max: int,
        beside: RecordQueries,
        changes: Changes,
        tables: InstructionTables,
    ) -> None:
        self._name = name
        self._asked = asked
        self._queries = asked.log
        self._table_queries = asked.tables
        self._reads = reads
        self._writer = writer
        self._event_bytes_max = event_bytes_max
        self._beside = beside
        self._changes = changes
        self._tables = tables
        self._pid = os.getpid()
        self._closed = StoreError(f"the store {name} is closed: open it again")
        # Runs at `close`, when the store is forgotten, or at exit: what is queued then is still written.
        self._let_go = weakref.finalize(self, _let_go, self._pid, (writer, reads, changes), self._closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def records(self) -> DatabaseRecords:
        """What is kept beside the log."""
        # Made when asked for: a store that held it would hold itself, and never be forgotten.
        return DatabaseRecords(self._beside, self._fetch, self._changes)

    @property
    def instructions(self) -> DatabaseInstructions:
        """What is kept about the instructions of agents."""
        return DatabaseInstructions(self._tables, self._fetch, self._changes)

    def append(self, events: Sequence[Event]) -> Future[None]:
        """Waits only while too much is queued; an append that was handed over cannot be cancelled."""
        done: Future[None] = Future()
        try:
            self._check_usable()
            rows = rows_of(events, event_bytes_max=self._event_bytes_max)
            posted = tuple(event for event in events if matters(event.payload))
            job = Append(rows, tallies(events), done, posted)
        except StoreError as error:
            done.set_exception(error)
        else:
            self._writer.submit(job)
        return done

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        """Reads and decodes as it is asked for the next event, a batch at a time."""
        self._check_usable()
        return self._read_from(session_id, 0 if after is None else self._place(session_id, after))

    def _place(self, session_id: str, event_id: str) -> int:
        for (seq,) in self._fetch(self._queries.place, (event_id, session_id)):
            assert isinstance(seq, int)
            return seq
        if self._fetch(self._queries.session, (session_id,)):
            raise UserError(f"session {session_id!a} has no event {event_id!a} to read on from")
        return 0

    def _read_from(self, session_id: str, seq: int) -> Iterator[Event]:
        while batch := self._fetch(self._queries.page, (session_id, seq, READ_BATCH_EVENTS)):
            for place, *columns in batch:
                assert isinstance(place, int)
                seq = place
                yield event_of(columns)

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        if limit is not None and limit < 0:
            raise UserError(f"a list cannot have {limit} sessions: give a limit of 0 or more, or none")
        rows_max = _ROWS_MAX if limit is None else min(limit, _ROWS_MAX)
        return tuple(map(session_of, self._fetch(self._queries.sessions, (rows_max,))))

    def lessons(self, *, limit: int) -> tuple[Event, ...]:
        found = []
        for columns in reversed(self._fetch(self._queries.lessons, (min(max(limit, 0), _ROWS_MAX),))):
            # A newer version's lesson is of no use to this one, and no reason to stop.
            with suppress(StoreError):
                found.append(event_of(columns))
        return tuple(found)

    def delete(self, session_id: str) -> int:
        if not is_text(session_id):
            return 0
        gone = self._settled(Delete(session_id, Future()))
        self.records.forget(session_id)
        return gone

    def prune(self, session_id: str, kept_types: Sequence[str], *, before: float) -> int:
        """Remove a session's events of all other types, if its last one is older; how many went."""
        return self._settled(Prune(session_id, tuple(kept_types), before, Future())) if is_text(session_id) else 0

    def prunable(self, kept_types: Sequence[str], *, before: float) -> tuple[tuple[str, int], ...]:
        """The sessions whose last event is older, and how many events of other types each has."""
        query = self._queries.prunable.format(kept=", ".join([self._queries.mark] * len(kept_types)))
        return tuple((str(id), int(str(count))) for id, count in self._fetch(query, (before, *kept_types)))

    def facts(self) -> Facts:
        ((version,),) = self._fetch(self._asked.version, ())
        ((size_bytes,),) = self._fetch(self._asked.size_bytes, ())
        (totals,) = self._fetch(self._queries.totals, ())
        return msgspec.convert((self._name, version, size_bytes, *totals), Facts)

    def tables(self) -> Tables:
        """What is asked is told of all sessions; those that have not been entered yet, are then."""
        return Answers(TableReads(self._fetch, self._table_queries, self.catch_up))

    def figures(self) -> Figures:
        """What is asked beyond the books, from the same tables."""
        return FigureReads(self._fetch, self._table_queries, self.catch_up)

    def rebuild(self) -> None:
        """Empty the tables; `catch_up` fills them from the log."""
        self._settled(Enter((), Future(), afresh=True))

    def to_enter(self) -> Iterator[str]:
        """The sessions of which not everything is in the tables."""
        least = ""
        while found := self._fetch(self._table_queries.to_enter, (least, SESSIONS_AT_ONCE)):
            for (session_id,) in found:
                least = f"{session_id}\0"  # The next text in order.
                yield str(session_id)

    def enter(self, session_id: str) -> None:
        """Enter a session wholly that is not."""
        self._settled(Enter((session_id,), Future()))

    def catch_up(self) -> None:
        if self._fetch(self._table_queries.is_to_enter, ()):
            for session_id in self.to_enter():
                self.enter(session_id)

    def table_rows(self, table: str, columns: Sequence[str], session_id: str | None = None) -> list[tuple[object, ...]]:
        """The rows of a table beside the log, of one session or of all, as they are."""
        query = self._table_queries.rows_of(table, columns, session=session_id is not None)
        return self._fetch(query, () if session_id is None else (session_id,))

    def _settled(self, job: Delete | Prune | Enter) -> int:
        self._check_usable()
        if self._writer.is_current_thread():
            raise StoreError("a callback of an append cannot wait for the writer: do this from another thread")
        self._writer.submit(job)
        return job.done.result() or 0

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        self._check_usable()
        return self._reads.fetch(query, parameters)

    def close(self) -> None:
        self._let_go()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(f"the store {self._name} was opened before this process was forked: open it again here")
        if not self._let_go.alive:
            raise StoreError(str(self._closed))


def _let_go(pid: int, held: tuple[Writer, Reads, Changes], closed: StoreError) -> None:
    if os.getpid() != pid:
        return  # A forked process has neither the thread nor a right to the connections.
    writer, reads, changes = held
    writer.close(closed)
    reads.close()
    changes.close()
