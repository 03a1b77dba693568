"""An in-memory event log, for tests and for sessions that need not be stored."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from threading import Lock
from types import TracebackType

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError, UserError
from holdfast.events.envelope import Event, type_of
from holdfast.events.log import SessionRow
from holdfast.events.payloads import CacheLearned
from holdfast.ledger.figures import Figures
from holdfast.ledger.folded import folded_tables
from holdfast.ledger.folded_figures import FoldedFigures
from holdfast.ledger.tables import Tables
from holdfast.stores.memory_records import MemoryRecords
from holdfast.stores.rows import EVENT_BYTES_MAX, already_kept, continued_elsewhere, joined, rows_of, tallies


class MemoryStore:
    """Accepts and rejects the same events as a store on disk."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX, models: Models | None = None) -> None:
        self._models = shipped_models() if models is None else models
        self._event_bytes_max = event_bytes_max
        self._lock = Lock()
        self._closed = False
        self._events: dict[str, list[Event]] = {}
        self._rows: dict[str, SessionRow] = {}
        self._learned: dict[str, Event] = {}
        self._positions: dict[str, tuple[str, int]] = {}  # Session and index of each event, by its id.
        self._continued: set[tuple[str, str | None]] = (
            set()
        )  # Pairs of session and parent event: each event is continued once.
        self._by_seq: dict[int, Event] = {}  # The events of all sessions, by sequence number.
        self._seq_max = 0
        self.records = MemoryRecords(self._events_by_seq)

    def __enter__(self) -> "MemoryStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, events: Sequence[Event]) -> Future[None]:
        done: Future[None] = Future()
        try:
            self._store(events)
        except StoreError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _store(self, events: Sequence[Event]) -> None:
        rows_of(events, event_bytes_max=self._event_bytes_max)
        with self._lock:
            self._check_open()
            for event in events:
                if event.id in self._positions:
                    raise already_kept(event.id)
                if event.parent_event_id is not None and _continuation(event) in self._continued:
                    raise continued_elsewhere(event.session_id)
            self._continued.update(map(_continuation, events))
            for event in events:
                session = self._events.setdefault(event.session_id, [])
                self._positions[event.id] = (event.session_id, len(session))
                session.append(event)
                self._seq_max += 1
                self._by_seq[self._seq_max] = event
                if isinstance(event.payload, CacheLearned):
                    self._learned[event.id] = event
            for tally in tallies(events):
                row = self._rows.get(tally.id)
                (self._rows[tally.id],) = joined((row, tally) if row else (tally,))

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        with self._lock:
            self._check_open()
            events = self._events.get(session_id, [])
            start = 0
            if after is not None and events:
                owner, index = self._positions.get(after, (None, 0))
                if owner != session_id:
                    raise UserError(f"session {session_id!a} has no event {after!a} to continue after")
                start = index + 1
            return iter(events[start:])

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        if limit is not None and limit < 0:
            raise UserError(f"the limit cannot be {limit}: use 0 or more, or none")
        with self._lock:
            self._check_open()
            newest_first = sorted(self._rows.values(), key=lambda row: (row.last_event_at, row.id), reverse=True)
            return tuple(newest_first[:limit])

    def lessons(self, *, limit: int) -> tuple[Event, ...]:
        with self._lock:
            self._check_open()
            return tuple(self._learned.values())[-limit:] if limit > 0 else ()

    def delete(self, session_id: str) -> int:
        with self._lock:
            self._check_open()
            events = self._events.pop(session_id, [])
            self._rows.pop(session_id, None)
            for event in events:
                del self._positions[event.id]
                self._learned.pop(event.id, None)
            self._continued.difference_update(map(_continuation, events))
            self._by_seq = {seq: event for seq, event in self._by_seq.items() if event.session_id != session_id}
            self.records.forget(session_id)
            return len(events)

    def _events_by_seq(self) -> dict[int, Event]:
        with self._lock:
            self._check_open()
            return dict(self._by_seq)

    def prune(self, session_id: str, kept_types: Sequence[str], *, before: float) -> int:
        """Deletes a session's events of all other types if its last event is older than `before`; returns how many."""
        events = list(self.read(session_id))
        if not events or max(event.at for event in events) >= before:
            return 0
        retained = [event for event in events if type_of(event.payload) in kept_types]
        self.delete(session_id)
        self._store(retained)
        return len(events) - len(retained)

    def tables(self) -> Tables:
        return folded_tables(self, self._models)

    def figures(self) -> Figures:
        return FoldedFigures(self, self._models)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this store is closed: open a new one")


def _continuation(event: Event) -> tuple[str, str | None]:
    return event.session_id, event.parent_event_id
