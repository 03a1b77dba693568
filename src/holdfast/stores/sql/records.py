"""Keys, budgets, controls, settings, leases and the global order of events in a database, for all engines."""

import json
from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple

from holdfast.errors import StoreError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControls, CacheSettings, SessionControl
from holdfast.events.records import BudgetCharge, BudgetDay, KeyRow, Lease, PositionedEvent, SessionHead, SharedValue
from holdfast.stores.sql.connection import ChangeRunner
from holdfast.stores.sql.dialect import SqlDialect, repeat_params
from holdfast.stores.sql.events import (
    EVENT_COLUMNS,
    FetchRows,
    as_int,
    chain_head,
    damaged_sessions_error,
    decode_event_row,
)
from holdfast.stores.write.queue import SqlStep

KEY_COLUMNS = KeyRow.__struct_fields__
_SELECT_KEYS = f"SELECT {', '.join(KEY_COLUMNS)} FROM holdfast.api_keys"
_CONTROL_LIST = "caching_enabled, generation, invalidated_at, adoptions"
_INSERT_CONTROL = f"INSERT INTO holdfast.cache_controls AS kept (session_id, {_CONTROL_LIST})"
_ON_CONFLICT = "ON CONFLICT (session_id) DO UPDATE SET"
SETTING = "SELECT value FROM holdfast.settings WHERE name = ?"
SET_SETTING = (
    "INSERT INTO holdfast.settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
# The one-row table makes the result one row even for a session without controls.
CONTROLS = (
    f"SELECT ({SETTING}), {_CONTROL_LIST} FROM (SELECT 1) AS one LEFT JOIN holdfast.cache_controls ON session_id = ?"
)
SET_CACHING_ENABLED = (
    f"{_INSERT_CONTROL} VALUES (?, ?, 0, NULL, 0) {_ON_CONFLICT} caching_enabled = excluded.caching_enabled"
)
INVALIDATE = (
    f"{_INSERT_CONTROL} VALUES (?, 1, 1, ?, 0) "
    f"{_ON_CONFLICT} generation = kept.generation + 1, invalidated_at = excluded.invalidated_at"
)
REQUEST_REFRESH = f"{_INSERT_CONTROL} VALUES (?, 1, 0, NULL, 1) {_ON_CONFLICT} adoptions = kept.adoptions + 1"
EVENTS_AFTER = f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM holdfast.events WHERE seq > ? ORDER BY seq LIMIT ?"
_CACHE = "cache"  # The name of the cache settings.

BUDGET_DAY = """
SELECT CASE WHEN day = ? THEN spent ELSE 0 END, CASE WHEN day = ? THEN reserved ELSE 0 END, usual_output_tokens
FROM holdfast.budgets WHERE key_id = ? AND day <= ? ORDER BY day DESC LIMIT 1"""
BUDGET_DAYS = """
SELECT CAST(coalesce(sum(spent), 0) AS bigint), CAST(coalesce(sum(reserved), 0) AS bigint)
FROM holdfast.budgets WHERE key_id = ? AND day >= ? AND day < ?"""
# The condition is checked on the locked row, so of concurrent reservations each sees those before it.
RESERVE = """
INSERT INTO holdfast.budgets AS kept (key_id, day, spent, reserved, usual_output_tokens) VALUES (?, ?, 0, ?, ?)
ON CONFLICT (key_id, day) DO UPDATE SET reserved = kept.reserved + excluded.reserved
WHERE kept.spent < ? AND (kept.reserved = 0 OR kept.spent + kept.reserved + excluded.reserved <= ?)"""
_ADD_RESERVATION = """
INSERT INTO holdfast.reservations (id, key_id, day, reserved, charged, at, is_settled) VALUES (?, ?, ?, ?, 0, ?, 0)"""
ADD_BUDGET_DAY = """
INSERT INTO holdfast.budgets (key_id, day, spent, reserved, usual_output_tokens) VALUES (?, ?, ?, 0, 0)
ON CONFLICT (key_id, day) DO NOTHING"""
# Locks the row of the call, so that of two settlements the second finds it settled.
SETTLE = "UPDATE holdfast.reservations SET is_settled = 1 WHERE id = ? AND is_settled = 0"
# The largest recent output: a larger one counts at once, and a maximum fades by 1/16 with each smaller one.
CHARGE_SETTLED = """
UPDATE holdfast.budgets SET
    spent = spent + ? - (SELECT charged FROM holdfast.reservations WHERE id = ?),
    reserved = reserved - (SELECT reserved FROM holdfast.reservations WHERE id = ?),
    usual_output_tokens = CASE WHEN ? = 0 THEN usual_output_tokens
        ELSE greatest(?, (usual_output_tokens * 15 + ?) / 16) END
WHERE key_id = ? AND day = (SELECT day FROM holdfast.reservations WHERE id = ?)"""
OPEN_RESERVATIONS = """
SELECT id FROM holdfast.reservations WHERE is_settled = 0 AND reserved > 0 AND at < ? ORDER BY at LIMIT 1000"""
EXPIRE = """
UPDATE holdfast.reservations SET charged = reserved, reserved = 0 WHERE id = ? AND is_settled = 0 AND reserved > 0"""
CHARGE_EXPIRED = """
UPDATE holdfast.budgets SET
    spent = spent + (SELECT charged FROM holdfast.reservations WHERE id = ?),
    reserved = reserved - (SELECT charged FROM holdfast.reservations WHERE id = ?)
WHERE key_id = (SELECT key_id FROM holdfast.reservations WHERE id = ?)
    AND day = (SELECT day FROM holdfast.reservations WHERE id = ?)"""

# As with RESERVE: checked on the locked row.
TAKE_REQUESTS = """
INSERT INTO holdfast.request_counts AS kept (key_id, minute, requests) VALUES (?, ?, ?)
ON CONFLICT (key_id, minute) DO UPDATE SET requests = kept.requests + excluded.requests
WHERE kept.requests + excluded.requests <= ?"""

SHARED_VALUE = "SELECT value FROM holdfast.shared_values WHERE key = ?"
_INSERT_SHARED = "INSERT INTO holdfast.shared_values (key, value, at) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
PUT_SHARED = f"{_INSERT_SHARED} value = excluded.value, at = excluded.at"
ADD_SHARED = f"{_INSERT_SHARED} at = excluded.at"

# Checked on the locked row, so of two processes that take a lease that has ended only the first gets it.
TAKE_LEASE = """
INSERT INTO holdfast.leases AS kept (name, owner, until, value) VALUES (?, ?, server_seconds() + ?, ?)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until, value = excluded.value
WHERE kept.owner = excluded.owner OR kept.until < server_seconds()"""
RELEASE_LEASE = "DELETE FROM holdfast.leases WHERE name = ? AND owner = ?"
LEASES = """
SELECT name, owner, until - server_seconds(), value FROM holdfast.leases WHERE name >= ? AND name < ? ORDER BY name"""
FORGET_LEASES = "DELETE FROM holdfast.leases WHERE until < server_seconds() - ?"
_SELECT_HEADS = f"SELECT s.id, s.event_count, {chain_head('s')} FROM holdfast.sessions AS s WHERE s.id"
SESSION_HEAD = f"{_SELECT_HEADS} = ?"

# Thousands of conversations may share a block; the most recent ones are the likely matches.
SESSIONS_PER_KEY_MAX = 8


class DatabaseRecords:
    """Changes are rare and made by people: each waits until it is durable."""

    def __init__(self, fetch: FetchRows, changes: ChangeRunner, dialect: SqlDialect) -> None:
        self._fetch = fetch
        self._changes = changes
        self.shared = SharedWork(fetch, changes, dialect)

    def add_key(self, row: KeyRow) -> None:
        columns, params = ", ".join(KEY_COLUMNS), repeat_params(len(KEY_COLUMNS))
        self._changes.run_statement(f"INSERT INTO holdfast.api_keys ({columns}) VALUES ({params})", astuple(row))

    def key(self, key_id: str) -> KeyRow | None:
        return next(map(_decode_key, self._fetch(f"{_SELECT_KEYS} WHERE id = ?", (key_id,))), None)

    def all_keys(self) -> tuple[KeyRow, ...]:
        return tuple(map(_decode_key, self._fetch(f"{_SELECT_KEYS} ORDER BY created_at, id", ())))

    def has_keys(self) -> bool:
        return bool(self._fetch("SELECT 1 FROM holdfast.api_keys LIMIT 1", ()))

    def update_key(self, row: KeyRow) -> bool:
        limits = ("budget_usd_a_day", "requests_a_minute", "budget_usd_a_month", "models")
        columns = ("name", "user_id", "team_id", *limits)
        changes = ", ".join(f"{column} = ?" for column in columns)
        values = tuple(getattr(row, column) for column in columns)
        change = f"UPDATE holdfast.api_keys SET {changes} WHERE id = ? AND revoked_at IS NULL"
        return self._changes.run_statement(change, (*values, row.id)) > 0

    def last_used_days(self) -> dict[str, str]:
        rows = self._fetch("SELECT key_id, max(day) FROM holdfast.account_days WHERE key_id <> '' GROUP BY key_id", ())
        return {str(key_id): str(day) for key_id, day in rows}

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        revoke = "UPDATE holdfast.api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        return self._changes.run_statement(revoke, (at, key_id)) > 0

    def controls(self, session_id: str) -> CacheControls:
        for settings, *columns in self._fetch(CONTROLS, (_CACHE, session_id)):
            return CacheControls(_decode_settings(settings), _decode_control(columns))
        return CacheControls(self.settings())

    async def look_up_controls(self, session_id: str) -> CacheControls:
        # A database may be remote or locked, and a query on the event loop would block every other session.
        import asyncio  # noqa: PLC0415 - commands that only read start in three quarters of the time without it

        return await asyncio.to_thread(self.controls, session_id)

    def session_controls(self) -> dict[str, SessionControl]:
        rows = self._fetch(f"SELECT session_id, {_CONTROL_LIST} FROM holdfast.cache_controls", ())
        return {str(session): _decode_control(columns) for session, *columns in rows}

    def settings(self) -> CacheSettings:
        return next((_decode_settings(value) for (value,) in self._fetch(SETTING, (_CACHE,))), CacheSettings())

    def set_settings(self, settings: CacheSettings) -> None:
        self._changes.run_statement(SET_SETTING, (_CACHE, msgspec.json.encode(settings).decode()))

    def set_caching_enabled(self, session_id: str, *, enabled: bool) -> SessionControl:
        self._changes.run_statement(SET_CACHING_ENABLED, (session_id, int(enabled)))
        return self.controls(session_id).session

    def invalidate(self, session_id: str, *, at: float) -> SessionControl:
        self._changes.run_statement(INVALIDATE, (session_id, at))
        return self.controls(session_id).session

    def request_refresh(self, session_id: str) -> SessionControl:
        self._changes.run_statement(REQUEST_REFRESH, (session_id,))
        return self.controls(session_id).session

    def delete_controls(self, session_id: str) -> None:
        """Deletes the controls of a session."""
        self._changes.run_statement("DELETE FROM holdfast.cache_controls WHERE session_id = ?", (session_id,))

    def get_budget_day(self, key_id: str, day: str) -> BudgetDay:
        rows = self._fetch(BUDGET_DAY, (day, day, key_id, day))
        return next((BudgetDay(*map(as_int, row)) for row in rows), BudgetDay())

    def sum_budget_days(self, key_id: str, first_day: str, end_day: str) -> BudgetDay:
        ((spent, reserved),) = self._fetch(BUDGET_DAYS, (key_id, first_day, end_day))
        return BudgetDay(as_int(spent), as_int(reserved))

    # The changes of budgets are not synced: they survive a crash of the process, and after a power failure a call
    # whose settlement is lost is still reserved.
    def reserve_budget(self, charge: BudgetCharge, *, limit: int, usual_output_tokens: int = 0) -> bool:
        key_id, day, amount = charge.key_id, charge.day, charge.amount
        return limit > 0 and self._changes.run_steps(
            [
                SqlStep(RESERVE, (key_id, day, amount, usual_output_tokens, limit, limit), rows_min=1),
                SqlStep(_ADD_RESERVATION, (charge.id, key_id, day, amount, charge.at)),
            ],
            synced=False,
        )

    def settle_budget(self, charge: BudgetCharge, *, output_tokens: int = 0) -> bool:
        id, key_id, day, tokens = charge.id, charge.key_id, charge.day, output_tokens
        return self._changes.run_steps(
            [
                SqlStep(f"{_ADD_RESERVATION} ON CONFLICT (id) DO NOTHING", (id, key_id, day, 0, charge.at)),
                SqlStep(SETTLE, (id,), rows_min=1),
                SqlStep(ADD_BUDGET_DAY, (key_id, day, 0)),
                SqlStep(CHARGE_SETTLED, (charge.amount, id, id, tokens, tokens, tokens, key_id, id), rows_min=1),
            ],
            synced=False,
        )

    def expire_reservations(self, before: float) -> int:
        ids = [str(id) for (id,) in self._fetch(OPEN_RESERVATIONS, (before,))]
        # One transaction each: locking many rows at once could wait for a process that locks them in another order.
        return sum(
            self._changes.run_steps(
                [SqlStep(EXPIRE, (id,), rows_min=1), SqlStep(CHARGE_EXPIRED, (id, id, id, id))], synced=False
            )
            for id in ids
        )

    def delete_settled(self, before: float) -> None:
        self._changes.run_statement("DELETE FROM holdfast.reservations WHERE at < ?", (before,))

    def seed_budget(self, key_id: str, day: str, spent: int) -> bool:
        return self._changes.run_statement(ADD_BUDGET_DAY, (key_id, day, spent)) > 0

    def take_requests(self, key_id: str, minute: int, count: int, *, limit: int) -> bool:
        step = SqlStep(TAKE_REQUESTS, (key_id, minute, count, limit), rows_min=1)
        return count <= limit and self._changes.run_steps([step], synced=False)

    def delete_request_counts(self, before_minute: int) -> None:
        self._changes.run_steps(
            [SqlStep("DELETE FROM holdfast.request_counts WHERE minute < ?", (before_minute,))], synced=False
        )

    # Not synced either: what is lost is learned again.
    def find_shared(self, keys: Sequence[str]) -> dict[str, str]:
        if not keys:
            return {}
        select = f"SELECT key, value FROM holdfast.shared_values WHERE key IN ({repeat_params(len(keys))})"
        return {str(key): str(value) for key, value in self._fetch(select, tuple(keys))}

    def put_shared(self, values: Sequence[SharedValue], deleted: Sequence[str] = ()) -> None:
        # In the order of the keys: two processes that lock the same rows must not wait for each other.
        puts = [SqlStep(PUT_SHARED, astuple(value)) for value in sorted(values, key=lambda value: value.key)]
        deletes = [SqlStep("DELETE FROM holdfast.shared_values WHERE key = ?", (key,)) for key in sorted(deleted)]
        self._changes.run_steps([*puts, *deletes], synced=False)

    def add_shared(self, value: SharedValue) -> str:
        self._changes.run_steps([SqlStep(ADD_SHARED, astuple(value))], synced=False)
        return self.find_shared([value.key]).get(value.key, value.text)

    def delete_shared(self, before: float) -> None:
        self._changes.run_steps([SqlStep("DELETE FROM holdfast.shared_values WHERE at < ?", (before,))], synced=False)

    def newest_position(self) -> int:
        ((seq,),) = self._fetch("SELECT coalesce(max(seq), 0) FROM holdfast.events", ())
        return as_int(seq)

    def events_after(self, position: int, *, limit: int) -> tuple[PositionedEvent, ...]:
        rows = self._fetch(EVENTS_AFTER, (position, limit))
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


class SharedWork:
    """Every method is one transaction. A lease is not synced: after a power failure, its owner is gone as well."""

    def __init__(self, fetch: FetchRows, changes: ChangeRunner, dialect: SqlDialect) -> None:
        self._fetch = fetch
        self._changes = changes
        self._heads_by_key = f"{_SELECT_HEADS} IN ({dialect.newest_sessions_query})"

    def take_lease(self, name: str, owner: str, *, seconds: float, value: str = "") -> bool:
        step = SqlStep(TAKE_LEASE, (name, owner, seconds, value), rows_min=1)
        return self._changes.run_steps([step], synced=False)

    def release_lease(self, name: str, owner: str) -> bool:
        return self._changes.run_steps([SqlStep(RELEASE_LEASE, (name, owner), rows_min=1)], synced=False)

    def list_leases(self, prefix: str) -> tuple[Lease, ...]:
        rows = self._fetch(LEASES, (prefix, f"{prefix}\uffff"))
        return tuple(Lease(str(name), str(owner), _as_float(left), str(value)) for name, owner, left, value in rows)

    def forget_leases(self, *, ended_seconds_ago: float) -> None:
        self._changes.run_steps([SqlStep(FORGET_LEASES, (ended_seconds_ago,))], synced=False)

    def find_head(self, session_id: str) -> SessionHead | None:
        return next(map(_decode_head, self._fetch(SESSION_HEAD, (session_id,))), None)

    def find_conversations(self, keys: Sequence[str]) -> tuple[SessionHead, ...]:
        rows = self._fetch(self._heads_by_key, (json.dumps(keys), SESSIONS_PER_KEY_MAX)) if keys else []
        return tuple(_decode_head(row) for row in rows)


def _decode_head(row: Sequence[object]) -> SessionHead:
    try:
        return msgspec.convert(dict(zip(SessionHead.__struct_fields__, row, strict=True)), SessionHead)
    except msgspec.ValidationError as error:
        raise damaged_sessions_error() from error


def _as_float(cell: object) -> float:
    if not isinstance(cell, float | int):
        raise StoreError("the list of leases is damaged: restore the database from a backup")
    return float(cell)
