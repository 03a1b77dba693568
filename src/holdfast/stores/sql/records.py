"""Keys, controls, settings and the global order of events in a database: the records and their SQL, for all engines."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import astuple

from holdfast.errors import StoreError
from holdfast.events.cache_controls import CacheControls, CacheSettings, SessionControl
from holdfast.events.log import Event
from holdfast.events.records import KeyRow, PositionedEvent
from holdfast.stores.sql.events import EVENT_COLUMNS, Cell, FetchRows, as_int, decode_event_row
from holdfast.stores.write.queue import SqlStep

KEY_COLUMNS = KeyRow.__struct_fields__


class ChangeRunner(Protocol):
    def run_statement(self, statement: str, parameters: Sequence[Cell]) -> int:
        """Runs one statement, durable once this returns, and returns the number of rows it changed."""

    def run_steps(self, steps: Sequence[SqlStep], *, synced: bool = True) -> bool:
        """Runs all steps in one transaction; returns False, with nothing changed, if one of them fails.

        A step fails if it changes too few rows or violates a constraint. Without `synced` the change survives a crash
        of the process, but not a power failure.
        """

    def close(self) -> None: ...


class RecordQueries:
    """The queries of an engine that writes `param` for a parameter and `schema` as table prefix."""

    def __init__(self, param: str, *, schema: str = "") -> None:
        keys, settings, controls = f"{schema}api_keys", f"{schema}settings", f"{schema}cache_controls"
        columns, params = ", ".join(KEY_COLUMNS), ", ".join([param] * len(KEY_COLUMNS))
        fields = "caching_enabled, generation, invalidated_at, adoptions"
        insert = f"INSERT INTO {controls} AS kept (session_id, {fields})"
        on_conflict = "ON CONFLICT (session_id) DO UPDATE SET"
        select_settings = f"SELECT value FROM {settings} WHERE name = 'cache'"
        self.add_key = f"INSERT INTO {keys} ({columns}) VALUES ({params})"
        self.key = f"SELECT {columns} FROM {keys} WHERE id = {param}"
        self.keys = f"SELECT {columns} FROM {keys} ORDER BY created_at, id"
        self.any_key = f"SELECT 1 FROM {keys} LIMIT 1"
        self.revoke_key = f"UPDATE {keys} SET revoked_at = {param} WHERE id = {param} AND revoked_at IS NULL"
        # The one-row table makes the result one row even for a session without controls.
        self.controls = (
            f"SELECT ({select_settings}), {fields} FROM (SELECT 1) AS one LEFT JOIN {controls} ON session_id = {param}"
        )
        self.session_controls = f"SELECT session_id, {fields} FROM {controls}"
        self.settings = select_settings
        self.set_settings = (
            f"INSERT INTO {settings} (name, value) VALUES ('cache', {param}) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        )
        self.set_caching_enabled = (
            f"{insert} VALUES ({param}, {param}, 0, NULL, 0) {on_conflict} caching_enabled = excluded.caching_enabled"
        )
        self.invalidate = (
            f"{insert} VALUES ({param}, 1, 1, {param}, 0) "
            f"{on_conflict} generation = kept.generation + 1, invalidated_at = excluded.invalidated_at"
        )
        self.request_refresh = f"{insert} VALUES ({param}, 1, 0, NULL, 1) {on_conflict} adoptions = kept.adoptions + 1"
        self.delete_controls = f"DELETE FROM {controls} WHERE session_id = {param}"
        self.newest_position = f"SELECT coalesce(max(seq), 0) FROM {schema}events"
        self.events_after = (
            f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM {schema}events WHERE seq > {param} ORDER BY seq LIMIT {param}"
        )


class DatabaseRecords:
    """Changes are rare and made by people: each uses a connection of its own and waits until it is durable."""

    def __init__(self, queries: RecordQueries, fetch: FetchRows, changes: ChangeRunner) -> None:
        self._queries = queries
        self._fetch = fetch
        self._changes = changes

    def add_key(self, row: KeyRow) -> None:
        self._changes.run_statement(self._queries.add_key, astuple(row))

    def key(self, key_id: str) -> KeyRow | None:
        return next(map(_decode_key, self._fetch(self._queries.key, (key_id,))), None)

    def all_keys(self) -> tuple[KeyRow, ...]:
        return tuple(map(_decode_key, self._fetch(self._queries.keys, ())))

    def has_keys(self) -> bool:
        return bool(self._fetch(self._queries.any_key, ()))

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        return self._changes.run_statement(self._queries.revoke_key, (at, key_id)) > 0

    def controls(self, session_id: str) -> CacheControls:
        for settings, *columns in self._fetch(self._queries.controls, (session_id,)):
            return CacheControls(_decode_settings(settings), _decode_control(columns))
        return CacheControls(self.settings())

    async def look_up_controls(self, session_id: str) -> CacheControls:
        # A database may be remote or locked, and a query on the event loop would block every other session.
        return await asyncio.to_thread(self.controls, session_id)

    def session_controls(self) -> dict[str, SessionControl]:
        return {
            str(session): _decode_control(columns)
            for session, *columns in self._fetch(self._queries.session_controls, ())
        }

    def settings(self) -> CacheSettings:
        return next((_decode_settings(value) for (value,) in self._fetch(self._queries.settings, ())), CacheSettings())

    def set_settings(self, settings: CacheSettings) -> None:
        self._changes.run_statement(self._queries.set_settings, (msgspec.json.encode(settings).decode(),))

    def set_caching_enabled(self, session_id: str, *, enabled: bool) -> SessionControl:
        self._changes.run_statement(self._queries.set_caching_enabled, (session_id, int(enabled)))
        return self.controls(session_id).session

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        self._changes.run_statement(self._queries.invalidate, (session_id, at))
        return self.controls(session_id).session

    def request_refresh(self, session_id: str) -> SessionControl:
        self._changes.run_statement(self._queries.request_refresh, (session_id,))
        return self.controls(session_id).session

    def delete_controls(self, session_id: str) -> None:
        """Deletes the controls of a session."""
        self._changes.run_statement(self._queries.delete_controls, (session_id,))

    def newest_position(self) -> int:
        ((seq,),) = self._fetch(self._queries.newest_position, ())
        return as_int(seq)

    def events_after(self, position: int, *, limit: int) -> tuple[PositionedEvent, ...]:
        rows = self._fetch(self._queries.events_after, (position, limit))
        return tuple(PositionedEvent(as_int(seq), _decode_event(columns)) for seq, *columns in rows)


def _decode_event(columns: Sequence[object]) -> Event | None:
    try:
        return decode_event_row(columns)
    except StoreError:
        # Skip events of a newer version: this one cannot use them.
        return None


def _decode_key(columns: Sequence[object]) -> KeyRow:
    try:
        return msgspec.convert(dict(zip(KEY_COLUMNS, columns, strict=True)), KeyRow)
    except (msgspec.ValidationError, ValueError) as error:
        raise StoreError("the list of keys is damaged: restore the database from a backup") from error


def _decode_settings(value: object) -> CacheSettings:
    if value is None:
        return CacheSettings()
    try:
        return msgspec.json.decode(str(value), type=CacheSettings)
    except msgspec.MsgspecError as error:
        raise StoreError(
            "the cache settings were written by a newer Holdfast, or are damaged: set them again"
        ) from error


def _decode_control(columns: Sequence[object]) -> SessionControl:
    enabled, generation, invalidated_at, refreshes = columns
    if enabled is None:
        return SessionControl()
    at = invalidated_at if isinstance(invalidated_at, float | int) else None
    counts = [count if isinstance(count, int) else 0 for count in (generation, refreshes)]
    return SessionControl(bool(enabled), counts[0], at, counts[1])
