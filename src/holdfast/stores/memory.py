"""An in-memory store, for tests and for sessions that need not be stored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock

from msgspec.structs import replace

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError, UserError
from holdfast.events.cache_controls import CacheControls, CacheSettings, SessionControl
from holdfast.events.log import Event, SessionRow, event_type_of
from holdfast.events.payloads.cache import CacheLearned
from holdfast.events.records import KeyRow, PositionedEvent
from holdfast.ledger.analytics.in_memory import EventAnalyticsQueries, build_event_cost_queries
from holdfast.ledger.analytics.queries import AnalyticsQueries, CostQueries
from holdfast.stores.sql.events import (
    EVENT_BYTES_MAX,
    continued_elsewhere_error,
    duplicate_event_error,
    encode_events,
    merge_tallies,
    tally_sessions,
)


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
        # Pairs of session and parent event: each event is continued once.
        self._continued: set[tuple[str, str | None]] = set()
        self._by_seq: dict[int, Event] = {}  # The events of all sessions, by sequence number.
        self._seq_max = 0
        self.records = MemoryRecords(self._events_by_seq)

    def __enter__(self) -> "MemoryStore":
        return self

    def __exit__(self, *exception: object) -> None:
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
        encode_events(events, event_bytes_max=self._event_bytes_max)
        with self._lock:
            self._check_open()
            for event in events:
                if event.id in self._positions:
                    raise duplicate_event_error(event.id)
                if event.parent_event_id is not None and _continuation(event) in self._continued:
                    raise continued_elsewhere_error(event.session_id)
            self._continued.update(map(_continuation, events))
            for event in events:
                session = self._events.setdefault(event.session_id, [])
                self._positions[event.id] = (event.session_id, len(session))
                session.append(event)
                self._seq_max += 1
                self._by_seq[self._seq_max] = event
                if isinstance(event.payload, CacheLearned):
                    self._learned[event.id] = event
            for tally in tally_sessions(events):
                row = self._rows.get(tally.id)
                (self._rows[tally.id],) = merge_tallies((row, tally) if row else (tally,))

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

    def learned_events(self, *, limit: int) -> tuple[Event, ...]:
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
            self.records.delete_controls(session_id)
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
        retained = [event for event in events if event_type_of(event.payload) in kept_types]
        self.delete(session_id)
        self._store(retained)
        return len(events) - len(retained)

    def cost_queries(self) -> CostQueries:
        return build_event_cost_queries(self, self._models)

    def analytics_queries(self) -> AnalyticsQueries:
        return EventAnalyticsQueries(self, self._models)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this store is closed: open a new one")


def _continuation(event: Event) -> tuple[str, str | None]:
    return event.session_id, event.parent_event_id


class MemoryRecords:
    """`events_by_seq` returns the events of the store by sequence number, oldest first."""

    def __init__(self, events_by_seq: Callable[[], Mapping[int, Event]]) -> None:
        self._events_by_seq = events_by_seq
        self._lock = Lock()
        self._keys: dict[str, KeyRow] = {}
        self._settings = CacheSettings()
        self._controls: dict[str, SessionControl] = {}

    def add_key(self, row: KeyRow) -> None:
        with self._lock:
            if row.id in self._keys:
                raise StoreError(f"key {row.id!a} already exists")
            self._keys[row.id] = row

    def key(self, key_id: str) -> KeyRow | None:
        return self._keys.get(key_id)

    def all_keys(self) -> tuple[KeyRow, ...]:
        return tuple(sorted(self._keys.values(), key=lambda row: (row.created_at, row.id)))

    def has_keys(self) -> bool:
        return bool(self._keys)

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        with self._lock:
            row = self._keys.get(key_id)
            if row is None or row.revoked_at is not None:
                return False
            self._keys[key_id] = replace(row, revoked_at=at)
            return True

    def controls(self, session_id: str) -> CacheControls:
        return CacheControls(self._settings, self._controls.get(session_id, SessionControl()))

    async def look_up_controls(self, session_id: str) -> CacheControls:
        return self.controls(session_id)

    def session_controls(self) -> dict[str, SessionControl]:
        return dict(self._controls)

    def settings(self) -> CacheSettings:
        return self._settings

    def set_settings(self, settings: CacheSettings) -> None:
        self._settings = settings

    def set_caching_enabled(self, session_id: str, *, enabled: bool) -> SessionControl:
        return self._change_control(session_id, lambda control: replace(control, caching_enabled=enabled))

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        return self._change_control(
            session_id, lambda control: replace(control, generation=control.generation + 1, invalidated_at=at)
        )

    def request_refresh(self, session_id: str) -> SessionControl:
        return self._change_control(session_id, lambda control: replace(control, refreshes=control.refreshes + 1))

    def _change_control(self, session_id: str, change: Callable[[SessionControl], SessionControl]) -> SessionControl:
        with self._lock:
            self._controls[session_id] = change(self._controls.get(session_id, SessionControl()))
            return self._controls[session_id]

    def delete_controls(self, session_id: str) -> None:
        """Deletes the controls of a session."""
        self._controls.pop(session_id, None)

    def newest_position(self) -> int:
        return max(self._events_by_seq(), default=0)

    def events_after(self, position: int, *, limit: int) -> tuple[PositionedEvent, ...]:
        events = self._events_by_seq().items()
        return tuple([PositionedEvent(seq, event) for seq, event in events if seq > position][:limit])
