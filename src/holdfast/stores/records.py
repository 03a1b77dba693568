"""Keys, settings and the order of all events in a database, whatever the engine."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import astuple

from holdfast.errors import StoreError
from holdfast.events.access import KeyRow
from holdfast.events.controls import CacheSettings, Controls, SessionControl
from holdfast.events.envelope import Event
from holdfast.events.records import Placed
from holdfast.stores.queries import Cell
from holdfast.stores.record_queries import KEY_COLUMNS, RecordQueries
from holdfast.stores.rows import event_of
from holdfast.stores.steps import Step

Fetch = Callable[[str, Sequence[Cell]], list[tuple[object, ...]]]


class Changes(Protocol):
    def change(self, statement: str, parameters: Sequence[Cell]) -> int:
        """Run one statement, durable once this returns; how many rows it touched."""

    def change_all(self, steps: Sequence[Step], *, synced: bool = True) -> bool:
        """Run all in one transaction; False, and nothing is changed, where one finds too little or may not be.

        What is not `synced` outlives the process, and not the power.
        """

    def close(self) -> None: ...


class DatabaseRecords:
    """Changes are few and made by people: each takes a connection of its own and waits until it is done."""

    def __init__(self, queries: RecordQueries, fetch: Fetch, changes: Changes) -> None:
        self._queries = queries
        self._fetch = fetch
        self._changes = changes

    def add_key(self, row: KeyRow) -> None:
        self._changes.change(self._queries.add_key, astuple(row))

    def key(self, key_id: str) -> KeyRow | None:
        return next(map(_key_of, self._fetch(self._queries.key, (key_id,))), None)

    def all_keys(self) -> tuple[KeyRow, ...]:
        return tuple(map(_key_of, self._fetch(self._queries.keys, ())))

    def has_keys(self) -> bool:
        return bool(self._fetch(self._queries.any_key, ()))

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        return self._changes.change(self._queries.revoke_key, (at, key_id)) > 0

    def controls(self, session_id: str) -> Controls:
        for settings, *said in self._fetch(self._queries.controls, (session_id,)):
            return Controls(_settings_of(settings), _control_of(said))
        return Controls(self.settings())

    def session_controls(self) -> dict[str, SessionControl]:
        return {str(session): _control_of(said) for session, *said in self._fetch(self._queries.session_controls, ())}

    def settings(self) -> CacheSettings:
        return next((_settings_of(value) for (value,) in self._fetch(self._queries.settings, ())), CacheSettings())

    def set_settings(self, settings: CacheSettings) -> None:
        self._changes.change(self._queries.set_settings, (msgspec.json.encode(settings).decode(),))

    def enable(self, session_id: str, *, enabled: bool) -> SessionControl:
        self._changes.change(self._queries.enable, (session_id, int(enabled)))
        return self.controls(session_id).session

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        self._changes.change(self._queries.invalidate, (session_id, at))
        return self.controls(session_id).session

    def adopt(self, session_id: str) -> SessionControl:
        self._changes.change(self._queries.adopt, (session_id,))
        return self.controls(session_id).session

    def forget(self, session_id: str) -> None:
        """Nothing was ever said of this session."""
        self._changes.change(self._queries.forget_controls, (session_id,))

    def newest_place(self) -> int:
        ((place,),) = self._fetch(self._queries.newest_place, ())
        assert isinstance(place, int)
        return place

    def behind(self, place: int, *, limit: int) -> tuple[Placed, ...]:
        found = []
        for seq, *columns in self._fetch(self._queries.behind, (place, limit)):
            assert isinstance(seq, int)
            found.append(Placed(seq, _readable(columns)))
        return tuple(found)


def _readable(columns: Sequence[object]) -> Event | None:
    try:
        return event_of(columns)
    except StoreError:
        # A newer version's event is of no use to this one, and no reason to stop.
        return None


def _key_of(columns: Sequence[object]) -> KeyRow:
    try:
        return msgspec.convert(dict(zip(KEY_COLUMNS, columns, strict=True)), KeyRow)
    except (msgspec.ValidationError, ValueError) as error:
        raise StoreError("the list of keys is damaged: restore the database from a copy") from error


def _settings_of(value: object) -> CacheSettings:
    if value is None:
        return CacheSettings()
    try:
        return msgspec.json.decode(str(value), type=CacheSettings)
    except msgspec.MsgspecError as error:
        raise StoreError(
            "the cache settings were written by a newer Holdfast, or are damaged: set them anew"
        ) from error


def _control_of(said: Sequence[object]) -> SessionControl:
    enabled, generation, invalidated_at, adoptions = said
    if enabled is None:
        return SessionControl()
    at = invalidated_at if isinstance(invalidated_at, float | int) else None
    counts = [one if isinstance(one, int) else 0 for one in (generation, adoptions)]
    return SessionControl(bool(enabled), counts[0], at, counts[1])
