"""In-memory keys, controls and settings, and the global order of all events."""

from collections.abc import Callable, Mapping
from threading import Lock

from msgspec.structs import replace

from holdfast.errors import StoreError
from holdfast.events.access import KeyRow
from holdfast.events.controls import CacheSettings, Controls, SessionControl
from holdfast.events.envelope import Event
from holdfast.events.records import Placed


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

    def controls(self, session_id: str) -> Controls:
        return Controls(self._settings, self._controls.get(session_id, SessionControl()))

    def session_controls(self) -> dict[str, SessionControl]:
        return dict(self._controls)

    def settings(self) -> CacheSettings:
        return self._settings

    def set_settings(self, settings: CacheSettings) -> None:
        self._settings = settings

    def enable(self, session_id: str, *, enabled: bool) -> SessionControl:
        with self._lock:
            before = self._controls.get(session_id, SessionControl())
            self._controls[session_id] = replace(before, caching_enabled=enabled)
            return self._controls[session_id]

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        with self._lock:
            before = self._controls.get(session_id, SessionControl())
            self._controls[session_id] = replace(before, generation=before.generation + 1, invalidated_at=at)
            return self._controls[session_id]

    def adopt(self, session_id: str) -> SessionControl:
        with self._lock:
            before = self._controls.get(session_id, SessionControl())
            self._controls[session_id] = replace(before, adoptions=before.adoptions + 1)
            return self._controls[session_id]

    def forget(self, session_id: str) -> None:
        """Deletes the controls of a session."""
        self._controls.pop(session_id, None)

    def newest_place(self) -> int:
        return max(self._events_by_seq(), default=0)

    def behind(self, position: int, *, limit: int) -> tuple[Placed, ...]:
        placed = [Placed(seq, event) for seq, event in self._events_by_seq().items() if seq > position]
        return tuple(placed[:limit])
