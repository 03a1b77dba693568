"""An event log in a database, independent of the engine: one writer for appends, reads in pages."""

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, Self

import msgspec

from holdfast.errors import StoreError, UserError
from holdfast.events.conversation_keys import iterate_conversation_keys
from holdfast.events.log import Event, LogPosition, SessionRow
from holdfast.events.payloads.calls import UNPRICED
from holdfast.events.records import OpenNotifications
from holdfast.ledger.analytics.results import CostQueries
from holdfast.ledger.postings import affects_ledger
from holdfast.stores.instructions.store import InstructionStore
from holdfast.stores.sql.analytics import AnalyticsQueries, SqlRollUpSource
from holdfast.stores.sql.analytics_queries import (
    ANY_PENDING_SESSION,
    FAILED_SESSIONS,
    KEY_LABELS,
    PENDING_SESSIONS,
    select_rows,
    sum_key_spending,
)
from holdfast.stores.sql.connection import ChangeRunner, Engine, Reader
from holdfast.stores.sql.events import (
    EVENT_BYTES_MAX,
    EVENT_POSITION,
    LEARNED_EVENTS,
    SESSION_EXISTS,
    SESSIONS_NEWEST_FIRST,
    TOTALS,
    Cell,
    as_int,
    build_events_page,
    build_events_query,
    build_prunable_query,
    build_sessions_events,
    damaged_sessions_error,
    decode_event_row,
    decode_session_row,
    encode_events,
    is_storable_text,
    select_event_positions,
    select_positions,
    tally_sessions,
)
from holdfast.stores.sql.records import DatabaseRecords
from holdfast.stores.write.queue import AppendJob, DeleteJob, PruneJob, RollUpJob, WriteJob

READ_BATCH_EVENTS = 128  # Bounds what a reader of a long session holds in memory.
SESSIONS_AT_ONCE = 500  # Ids per statement; a page of pending sessions starts after the last id of the one before.
_ROWS_MAX = 2**62  # No limit: more rows than any table has, and within every engine's integers.


class JobWriter(Protocol):
    def submit(self, job: WriteJob, /) -> None:
        """Takes a job and settles its future, at the latest when the writer is closed."""

    def is_current_thread(self) -> bool:
        """Whether this is the writer's own thread, which must not wait for itself."""

    def close(self, refusal: StoreError, /) -> None:
        """Writes what is queued; every later job is rejected with `refusal`."""


class StoreFacts(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a database in numbers; `pending_sessions` sessions are not in the tables yet."""

    name: str
    version: int
    size_bytes: int
    sessions: int
    events: int
    oldest_at: float | None
    newest_at: float | None
    calls: int
    pending_sessions: int


class KeySpending(msgspec.Struct, frozen=True):
    """What calls and pings cost on a UTC day, in picodollars; a call counts on the day on which it ended.

    `label` is the name of the key's sessions, empty for calls without a key. `unpriced_tokens` are not in `spent`.
    """

    day: str
    key_id: str
    label: str
    calls: int
    spent: int
    unpriced_tokens: int


class DatabaseEventLog:
    """An append reports every failure through its future; everything else raises.

    After a write has failed for good the store accepts no more events until it is reopened, because the log would have
    a gap; what is on it can still be read.
    """

    notice: str | None = None  # What a person who opens the store should know.
    _survives_fork = False  # A database file or server must not be used over a parent's connections.

    def __init__(
        self,
        engine: Engine,
        reads: Reader,
        changes: ChangeRunner,
        *,
        writer: JobWriter,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        self._name = engine.name
        self._dialect = engine.dialect
        self._reads = reads
        self._changes = changes
        self._writer = writer
        self._event_bytes_max = event_bytes_max
        self._pid = os.getpid()
        self._closed = StoreError(f"the store {engine.name} is closed: open it again")
        # Runs at `close`, when the store is garbage-collected, or at exit: queued events are still written then.
        self._release = weakref.finalize(self, _release, self._pid, (writer, reads, changes), self._closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def records(self) -> DatabaseRecords:
        """Keys, controls and settings beside the log."""
        # Created on demand: storing it would make a reference cycle, and the store would not be finalized.
        return DatabaseRecords(self._fetch, self._changes, self._dialect)

    @property
    def instructions(self) -> InstructionStore:
        return InstructionStore(self._fetch, self._changes)

    def append(self, events: Sequence[Event], *, at_head: bool = False) -> Future[None]:
        """Blocks only while the queue is full; an append that was queued cannot be cancelled."""
        done: Future[None] = Future()
        try:
            self._check_usable()
            rows = encode_events(events, event_bytes_max=self._event_bytes_max)
            posted = tuple(event for event in events if affects_ledger(event.payload))
            keys = [
                (key, event.at, event.session_id)
                for event in posted
                for key in iterate_conversation_keys(event.payload)
            ]
            job = AppendJob(rows, tally_sessions(events), done, posted, tuple(keys), at_head)
        except StoreError as error:
            done.set_exception(error)
        else:
            self._writer.submit(job)
        return done

    def read(self, session_id: str, *, after: str | None = None, types: Sequence[str] = ()) -> Iterator[Event]:
        """Reads and decodes lazily, one batch at a time; with `types`, only events of these."""
        self._check_usable()
        return self._read_from(session_id, 0 if after is None else self._find_seq(session_id, after), types)

    def _find_seq(self, session_id: str, event_id: str) -> int:
        for (seq,) in self._fetch(EVENT_POSITION, (event_id, session_id)):
            return as_int(seq)
        if self._fetch(SESSION_EXISTS, (session_id,)):
            raise UserError(f"session {session_id!a} has no event {event_id!a} to continue after")
        return 0

    def _read_from(self, session_id: str, seq: int, types: Sequence[str]) -> Iterator[Event]:
        query = build_events_page(len(types))
        while batch := self._fetch(query, (session_id, seq, *types, READ_BATCH_EVENTS)):
            for row_seq, *columns in batch:
                seq = as_int(row_seq)
                yield decode_event_row(columns)

    def read_sessions(self, after: Mapping[str, str | None], *, types: Sequence[str]) -> dict[str, tuple[Event, ...]]:
        """The events of these types of several sessions at once, each from its start or after its event.

        A session is left out if it does not have that event any more. All events are held in memory: ask for as many
        sessions as have few enough.
        """
        starts = {id: 0 for id, event_id in after.items() if event_id is None and is_storable_text(id)}
        ids = {event_id: id for id, event_id in after.items() if event_id is not None}
        for page in _split_pages(tuple(ids)):
            for event_id, session_id, seq in self._fetch(select_event_positions(len(page)), page):
                if ids[str(event_id)] == session_id:
                    starts[str(session_id)] = as_int(seq)
        found: dict[str, list[tuple[int, Event]]] = {id: [] for id in starts}
        # Those that are read from their start apart from those of which only the newest events are read.
        for group in ([id for id in starts if not starts[id]], [id for id in starts if starts[id]]):
            for page in _split_pages(group):
                cells: list[Cell] = [*page, min(starts[id] for id in page), *types]
                for row_seq, *columns in self._fetch(build_sessions_events(len(page), len(types)), cells):
                    event, seq = decode_event_row(columns), as_int(row_seq)
                    if seq > starts[event.session_id]:
                        found[event.session_id].append((seq, event))
        return {id: tuple(event for _, event in sorted(events, key=_by_seq)) for id, events in found.items()}

    def read_positions(self, session_ids: Sequence[str]) -> dict[str, LogPosition]:
        """Where the logs of sessions end now; a session that is not stored has none."""
        ids = [id for id in dict.fromkeys(session_ids) if is_storable_text(id)]
        rows = (row for page in _split_pages(ids) for row in self._fetch(select_positions(len(page)), page))
        return {str(id): LogPosition(self._name, as_int(events), tuple(cells)) for id, events, *cells in rows}

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        if limit is not None and limit < 0:
            raise UserError(f"the limit cannot be {limit}: use 0 or more, or none")
        rows_max = _ROWS_MAX if limit is None else min(limit, _ROWS_MAX)
        return tuple(map(decode_session_row, self._fetch(SESSIONS_NEWEST_FIRST, (rows_max,))))

    def find_sessions(self, event_ids: Sequence[str]) -> frozenset[str]:
        ids = sorted({id for id in event_ids if is_storable_text(id)})
        return frozenset(
            str(session_id)
            for page in _split_pages(ids)
            for (session_id,) in self._fetch(build_events_query(len(page)), page)
        )

    def learned_events(self, *, limit: int) -> tuple[Event, ...]:
        events = []
        for columns in reversed(self._fetch(LEARNED_EVENTS, (min(max(limit, 0), _ROWS_MAX),))):
            # Skip events of a newer version: this one cannot use them.
            with suppress(StoreError):
                events.append(decode_event_row(columns))
        return tuple(events)

    def delete(self, session_id: str) -> int:
        if not is_storable_text(session_id):
            return 0
        deleted = self._run_job(DeleteJob(session_id, Future()))
        self.records.delete_controls(session_id)
        return deleted

    def prune(self, session_id: str, kept_types: Sequence[str], *, before: float) -> int:
        """Deletes a session's events of all other types if its last event is older than `before`; returns how many."""
        if not is_storable_text(session_id):
            return 0
        return self._run_job(PruneJob(session_id, tuple(kept_types), before, Future()))

    def make_notifications(self, direct_url: str | None = None) -> OpenNotifications | None:
        """Notifications of new events, where the engine has them; `direct_url` leads to the database without a pooler.

        Raises UserError for an address that cannot be parsed.
        """
        return None

    def list_prunable(self, kept_types: Sequence[str], *, before: float) -> tuple[tuple[str, int], ...]:
        """Sessions whose last event is older than `before`, with the number of events that pruning would delete."""
        rows = self._fetch(build_prunable_query(len(kept_types)), (*kept_types, before))
        return tuple((str(id), as_int(count)) for id, count in rows)

    def clear_partitions(self, kept_types: Sequence[str], *, before: float) -> int:
        """Removes at once what `prune` would remove of whole partitions; returns how many events. Then prune the rest.

        Only a database with partitions has something to gain from it.
        """
        return 0

    def drop_empty_partitions(self, *, before: float) -> int:
        """Drops the partitions that ended before a time and have no rows any more; returns how many."""
        return 0

    def read_facts(self) -> StoreFacts:
        ((version,),) = self._fetch(self._dialect.version_query, ())
        ((size_bytes,),) = self._fetch(self._dialect.size_query, ())
        (totals,) = self._fetch(TOTALS, ())
        try:
            return msgspec.convert((self._name, version, size_bytes, *totals), StoreFacts)
        except msgspec.ValidationError as error:
            raise damaged_sessions_error() from error

    def cost_queries(self) -> CostQueries:
        """Sessions that are missing from the tables are processed first."""
        return CostQueries(SqlRollUpSource(self._fetch, self.roll_up_pending))

    def analytics_queries(self) -> AnalyticsQueries:
        return AnalyticsQueries(self._fetch, self.roll_up_pending)

    def sum_key_spending(self, first_day: str = "") -> tuple[KeySpending, ...]:
        """What was spent through the gateway from a UTC day on, by day and key."""
        self.roll_up_pending()
        labels = {str(key_id): str(name or "") for key_id, name in self._fetch(KEY_LABELS, ())}
        rows = self._fetch(sum_key_spending(), (UNPRICED, first_day, UNPRICED, first_day, first_day))
        return tuple(
            KeySpending(str(day), str(key_id), labels.get(str(key_id), ""), *map(as_int, sums))
            for day, key_id, *sums in rows
            if any(map(as_int, sums))
        )

    def list_failed_sessions(self, first_day: str = "") -> tuple[str, ...]:
        """The sessions with a call that failed at no cost, from a UTC day on."""
        self.roll_up_pending()
        return tuple(str(session_id) for (session_id,) in self._fetch(FAILED_SESSIONS, (first_day,)))

    def clear_tables(self) -> None:
        """Empties the tables; `roll_up_pending` fills them from the log."""
        self._run_job(RollUpJob((), Future(), clear_first=True))

    def iter_pending_sessions(self) -> Iterator[str]:
        """Sessions whose events are not all in the tables."""
        first_id = ""
        while rows := self._fetch(PENDING_SESSIONS, (first_id, SESSIONS_AT_ONCE)):
            for (session_id,) in rows:
                first_id = f"{session_id}\0"  # The smallest string after it.
                yield str(session_id)

    def roll_up_session(self, session_id: str) -> None:
        """Processes all events of a session that is not completely in the tables."""
        self._run_job(RollUpJob((session_id,), Future()))

    def roll_up_pending(self) -> None:
        if self._fetch(ANY_PENDING_SESSION, ()):
            for session_id in self.iter_pending_sessions():
                self.roll_up_session(session_id)

    def table_rows(self, table: str, columns: Sequence[str], session_id: str | None = None) -> list[tuple[object, ...]]:
        """The raw rows of a table, of one session or of all."""
        query = select_rows(table, columns, session=session_id is not None)
        return self._fetch(query, () if session_id is None else (session_id,))

    def _run_job(self, job: DeleteJob | PruneJob | RollUpJob) -> int:
        self._check_usable()
        if self._writer.is_current_thread():
            raise StoreError("an append callback runs on the writer thread and cannot wait for it: use another thread")
        self._writer.submit(job)
        return job.done.result() or 0

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        self._check_usable()
        return self._reads.fetch(query, parameters)

    def close(self) -> None:
        self._release()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid and not self._survives_fork:
            raise StoreError(f"the store {self._name} was opened before this process was forked: open it again here")
        if not self._release.alive:
            raise StoreError(str(self._closed))


def _split_pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + SESSIONS_AT_ONCE] for start in range(0, len(ids), SESSIONS_AT_ONCE))


def _by_seq(row: tuple[int, Event]) -> int:
    return row[0]


def _release(pid: int, resources: tuple[JobWriter, Reader, ChangeRunner], closed: StoreError) -> None:
    if os.getpid() != pid:
        return  # A forked process has no writer thread and must not close its parent's connections.
    writer, reads, changes = resources
    writer.close(closed)
    reads.close()
    changes.close()
