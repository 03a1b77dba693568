"""A log that lives as long as its process: for tests, and for sessions that need not be kept."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from threading import Lock
from types import TracebackType

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError, UserError
from holdfast.events.envelope import Event, type_of
from holdfast.events.log import SessionRow
from holdfast.events.payloads import CacheLearned
from holdfast.ledger.folded import folded_tables
from holdfast.ledger.tables import Tables
from holdfast.stores.memory_records import MemoryRecords
from holdfast.stores.rows import EVENT_BYTES_MAX, already_kept, continued_elsewhere, merge, rows_of, tallies


class MemoryStore:
    """Takes and refuses the same events as a store on disk does."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX, models: Models | None = None) -> None:
        self._models = shipped_models() if models is None else models
        self._event_bytes_max = event_bytes_max
        self._lock = Lock()
        self._closed = False
        self._events: dict[str, list[Event]] = {}
        self._rows: dict[str, SessionRow] = {}
        self._lessons: dict[str, Event] = {}
        self._places: dict[str, tuple[str, int]] = {}  # Where an event stands, by its id.
        self._steps: set[tuple[str, str | None]] = set()  # Which events of which sessions were continued.
        self._placed: dict[int, Event] = {}  # All events, by their place among all.
        self._newest_place = 0
        self.records = MemoryRecords(self._by_place)

    def __enter__(self) -> "MemoryStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, events: Sequence[Event]) -> Future[None]:
        done: Future[None] = Future()
        try:
            self._keep(events)
        except StoreError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _keep(self, events: Sequence[Event]) -> None:
        rows_of(events, event_bytes_max=self._event_bytes_max)
        with self._lock:
            self._check_open()
            for event in events:
                if event.id in self._places:
                    raise already_kept(event.id)
                if event.parent_event_id is not None and _step(event) in self._steps:
                    raise continued_elsewhere(event.session_id)
            self._steps.update(map(_step, events))
            for event in events:
                session = self._events.setdefault(event.session_id, [])
                self._places[event.id] = (event.session_id, len(session))
                session.append(event)
                self._newest_place += 1
                self._placed[self._newest_place] = event
                if isinstance(event.payload, CacheLearned):
                    self._lessons[event.id] = event
            for added in tallies(events):
                before = self._rows.get(added.id)
                self._rows[added.id] = merge(before, added) if before else added

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        with self._lock:
            self._check_open()
            events = self._events.get(session_id, [])
            start = 0
            if after is not None and events:
                home, place = self._places.get(after, (None, 0))
                if home != session_id:
                    raise UserError(f"session {session_id!a} has no event {after!a} to read on from")
                start = place + 1
            return iter(events[start:])

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        if limit is not None and limit < 0:
            raise UserError(f"a list cannot have {limit} sessions: give a limit of 0 or more, or none")
        with self._lock:
            self._check_open()
            newest_first = sorted(self._rows.values(), key=lambda row: (row.last_event_at, row.id), reverse=True)
            return tuple(newest_first[:limit])

    def lessons(self, *, limit: int) -> tuple[Event, ...]:
        with self._lock:
            self._check_open()
            return tuple(self._lessons.values())[-limit:] if limit > 0 else ()

    def delete(self, session_id: str) -> int:
        with self._lock:
            self._check_open()
            events = self._events.pop(session_id, [])
            self._rows.pop(session_id, None)
            for event in events:
                del self._places[event.id]
                self._lessons.pop(event.id, None)
            self._steps.difference_update(map(_step, events))
            self._placed = {at: event for at, event in self._placed.items() if event.session_id != session_id}
            self.records.forget(session_id)
            return len(events)

    def _by_place(self) -> dict[int, Event]:
        with self._lock:
            self._check_open()
            return dict(self._placed)

    def prune(self, session_id: str, kept_types: Sequence[str], *, before: float) -> int:
        """Remove a session's events of all other types, if its last one is older; how many went."""
        events = list(self.read(session_id))
        if not events or max(event.at for event in events) >= before:
            return 0
        kept = [event for event in events if type_of(event.payload) in kept_types]
        self.delete(session_id)
        self._keep(kept)
        return len(events) - len(kept)

    def tables(self) -> Tables:
        return folded_tables(self, self._models)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this store is closed: open a new one")


def _step(event: Event) -> tuple[str, str | None]:
    return event.session_id, event.parent_event_id
