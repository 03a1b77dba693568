"""Leases and conversation heads: what processes that share a store tell each other through it, for all engines."""

import json
from collections.abc import Sequence

import msgspec

from holdfast.errors import StoreError
from holdfast.events.records import Lease, SessionHead
from holdfast.stores.sql.connection import ChangeRunner
from holdfast.stores.sql.dialect import SqlDialect
from holdfast.stores.sql.events import FetchRows, chain_head, damaged_sessions_error
from holdfast.stores.write.queue import SqlStep

# Checked on the locked row, so of two processes that take a lease that has ended only the first gets it.
TAKE_LEASE = """
INSERT INTO holdfast.leases AS kept (name, owner, until, value) VALUES (?, ?, server_seconds() + ?, ?)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until, value = excluded.value
WHERE kept.owner = excluded.owner OR kept.until < server_seconds()"""
RELEASE_LEASE = "DELETE FROM holdfast.leases WHERE name = ? AND owner = ?"
LEASES = """
SELECT name, owner, until - server_seconds(), value FROM holdfast.leases WHERE name >= ? AND name < ? ORDER BY name"""
FORGET_LEASES = "DELETE FROM holdfast.leases WHERE until < server_seconds() - ?"
SESSION_HEADS = f"SELECT s.id, s.event_count, {chain_head('s')} FROM holdfast.sessions AS s WHERE s.id IN ("

# Thousands of conversations may share a block; the most recent ones are the likely matches.
SESSIONS_PER_KEY_MAX = 8


class SharedWork:
    """Every method is one transaction. A lease is not synced: after a power failure, its owner is gone as well."""

    def __init__(self, fetch: FetchRows, changes: ChangeRunner, dialect: SqlDialect) -> None:
        self._fetch = fetch
        self._changes = changes
        self._heads_by_key = f"{SESSION_HEADS}{dialect.newest_sessions_query})"

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
