"""The event log in a SQLite file: what was acknowledged survives a crash, and processes may share it."""

import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from holdfast.errors import StoreError, UserError
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.stores.migrate import load
from holdfast.stores.rows import COLUMNS, EVENT_BYTES_MAX, event_of, is_text, rows_of, session_of, tallies
from holdfast.stores.sqlite_file import BUSY_SECONDS_MAX, open_reader, open_writer, prepare_file
from holdfast.stores.sqlite_reads import Cell, SqliteReads
from holdfast.stores.sqlite_writes import SqliteWrites
from holdfast.stores.writer import GROUP_JOBS_MAX, QUEUE_BYTES_MAX, Append, Delete, Writer

READ_BATCH_EVENTS = 128

PAGE = f"SELECT seq, {', '.join(COLUMNS)} FROM events WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
PLACE = "SELECT seq FROM events WHERE id = ? AND session_id = ?"
SESSION = "SELECT 1 FROM sessions WHERE id = ?"
SESSIONS = f"""
SELECT {", ".join(SessionRow.__struct_fields__)} FROM sessions ORDER BY last_event_at DESC, id DESC LIMIT ?
"""

# The type is spelled out: only then the index of such rows is used.
LESSONS = f"SELECT {', '.join(COLUMNS)} FROM events WHERE type = 'cache.learned' ORDER BY seq DESC LIMIT ?"


class SqliteStore:
    """An append reports every failure through its future; everything else raises.

    After a write failed (disk full, file locked for too long) the store takes no more events until it is
    opened again, because the log would have a gap; what is on it can still be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_seconds_max: float = BUSY_SECONDS_MAX,
        group_jobs_max: int = GROUP_JOBS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise UserError("a SQLite store needs a file; for a log that is not kept use MemoryStore, or 'memory:'")
        self.path = Path(path).absolute()
        prepare_file(self.path)
        connection = open_writer(self.path, load("sqlite"), busy_seconds_max=busy_seconds_max)
        writes = SqliteWrites(connection, self.path)
        self._event_bytes_max = event_bytes_max
        self._reads = SqliteReads(partial(open_reader, self.path, busy_seconds_max=busy_seconds_max), self.path)
        self._writer = Writer(
            writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max
        )
        self._pid = os.getpid()
        self._closed = StoreError(f"the store {self.path} is closed: open it again")
        # Runs at `close`, when the store is forgotten, or at exit: what is queued then is still written.
        self._let_go = weakref.finalize(self, _let_go, self._pid, self._writer, self._reads, self._closed)

    def __enter__(self) -> "SqliteStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, events: Sequence[Event]) -> Future[None]:
        """Waits only while too much is queued; an append that was handed over cannot be cancelled."""
        done: Future[None] = Future()
        try:
            self._check_usable()
            job = Append(rows_of(events, event_bytes_max=self._event_bytes_max), tallies(events), done)
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
        for (seq,) in self._fetch(PLACE, (event_id, session_id)):
            assert isinstance(seq, int)
            return seq
        if self._fetch(SESSION, (session_id,)):
            raise UserError(f"session {session_id!a} has no event {event_id!a} to read on from")
        return 0

    def _read_from(self, session_id: str, seq: int) -> Iterator[Event]:
        while batch := self._fetch(PAGE, (session_id, seq, READ_BATCH_EVENTS)):
            for place, *columns in batch:
                assert isinstance(place, int)
                seq = place
                yield event_of(columns)

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        if limit is not None and limit < 0:
            raise UserError(f"a list cannot have {limit} sessions: give a limit of 0 or more, or none")
        return tuple(map(session_of, self._fetch(SESSIONS, (-1 if limit is None else limit,))))

    def lessons(self, *, limit: int) -> tuple[Event, ...]:
        found = []
        for columns in reversed(self._fetch(LESSONS, (max(limit, 0),))):
            # A newer version's lesson is of no use to this one, and no reason to stop.
            with suppress(StoreError):
                found.append(event_of(columns))
        return tuple(found)

    def delete(self, session_id: str) -> int:
        """Also overwrites what the file held of it."""
        self._check_usable()
        if self._writer.is_current_thread():
            raise StoreError("a callback of an append cannot wait for a deletion: delete from another thread")
        if not is_text(session_id):
            return 0
        done: Future[int] = Future()
        self._writer.submit(Delete(session_id, done))
        return done.result()

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        self._check_usable()
        return self._reads.fetch(query, parameters)

    def close(self) -> None:
        self._let_go()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(f"the store {self.path} was opened before this process was forked: open it again here")
        if not self._let_go.alive:
            raise StoreError(str(self._closed))


def _let_go(pid: int, writer: Writer, reads: SqliteReads, closed: StoreError) -> None:
    if os.getpid() != pid:
        return  # A forked process has neither the thread nor a right to the connections.
    writer.close(closed)
    reads.close()
