"""Upkeep of a PostgreSQL store: partitions for the months to come, sums of past days, and retention by partition.

All of it may run in several processes at once. Locks belong to a transaction, so that it works behind a pooler.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from psycopg import sql
from psycopg.errors import LockNotAvailable

from holdfast.events.records import snapshot_key
from holdfast.ledger.postings import ROLLUPS, SESSION_DAYS
from holdfast.stores.postgres.server import PostgresConnection
from holdfast.stores.sql.analytics_queries import merge_writer_rows
from holdfast.stores.sql.events import as_int

MONTHS_AHEAD = 2
_UPKEEP_LOCK = 0x484F4C45  # Next to the lock of migrations.
# Nobody waits for long behind a lock that upkeep waits for; it is tried again an hour later.
_LOCK_MILLISECONDS_MAX = 1_000

# Rows of the day before may still be added to: a call counts on the day on which it ended, and is recorded later.
_FIRST_DAY_KEPT = "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '1 day', 'YYYY-MM-DD')"
WRITER_SUMS = tuple(table for table in ROLLUPS if table is not SESSION_DAYS)

_ENDED_PARTITIONS = "SELECT parent, name, until FROM holdfast.partitions WHERE until <= %s ORDER BY until, parent"
# A session with events in a partition started before the end of it.
_IS_ACTIVE = "SELECT 1 FROM holdfast.sessions WHERE last_event_at >= %s AND started_at < %s LIMIT 1"
_RECOUNT = """
WITH counts AS (
    SELECT e.session_id, count(*) AS events, min(e.at) AS first_at, max(e.at) AS last_at
    FROM holdfast.events AS e WHERE e.session_id IN (SELECT session_id FROM touched) GROUP BY e.session_id
)
UPDATE holdfast.sessions AS s SET entered_events = -1,
    head_events = CASE WHEN head_events = event_count THEN coalesce(counts.events, 0) ELSE -1 END,
    event_count = coalesce(counts.events, 0),
    started_at = coalesce(counts.first_at, started_at), last_event_at = coalesce(counts.last_at, last_event_at)
FROM touched LEFT JOIN counts USING (session_id) WHERE s.id = touched.session_id"""


class _Partition(msgspec.Struct, frozen=True):
    parent: str
    name: str
    until: float

    @property
    def table(self) -> sql.Identifier:
        return sql.Identifier("holdfast", self.name)


def keep_up(connection: PostgresConnection) -> int:
    """Creates partitions ahead, and merges the sums of past days; returns how many partitions are new.

    One process does it while others go on.
    """
    with connection.transaction():
        _limit_locks(connection)
        if not _fetch(connection, "SELECT 1 WHERE pg_try_advisory_xact_lock(%s)", _UPKEEP_LOCK):
            return 0
        ((added,),) = _fetch(connection, "SELECT holdfast.add_partitions(%s)", MONTHS_AHEAD)
        ((day,),) = _fetch(connection, _FIRST_DAY_KEPT)
        for table in WRITER_SUMS:
            connection.execute(merge_writer_rows(table), (day,))
    return as_int(added)


def clear_partitions(connection: PostgresConnection, kept_types: Sequence[str], *, before: float) -> int:
    """Removes all other events of the months in which no session has an event since `before`; returns how many.

    The sessions are then counted again, and their sums derived again, as after `prune`. A month with a session that
    went on, or that is locked, stays as it is: that is left to `prune`, session by session.
    """
    removed = 0
    for partition in _iterate_ended(connection, before):
        if partition.parent == "events" and not _fetch(connection, _IS_ACTIVE, before, partition.until):
            with suppress(LockNotAvailable), connection.transaction():
                removed += _clear_month(connection, partition, kept_types, before)
    return removed


def _clear_month(connection: PostgresConnection, part: _Partition, kept_types: Sequence[str], before: float) -> int:
    _limit_locks(connection)
    connection.execute("SET LOCAL statement_timeout = 0")
    # Sessions first, as in an append. One that starts or goes on from now on waits until this is done.
    connection.execute("SELECT 1 FROM holdfast.sessions WHERE started_at < %s ORDER BY id FOR UPDATE", (part.until,))
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(part.table))
    if _fetch(connection, _IS_ACTIVE, before, part.until):
        return 0
    is_other = sql.SQL("type <> ALL(%s)")
    temporary = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WHERE {}").format
    touched, kept = sql.Identifier("touched"), sql.Identifier("kept")
    types = (list(kept_types),)
    connection.execute(temporary(touched, sql.SQL("DISTINCT session_id"), part.table, is_other), types)
    ((count,),) = connection.execute(
        sql.SQL("SELECT count(*) FROM {} WHERE {}").format(part.table, is_other), types
    ).fetchall()
    if not count:
        return 0
    connection.execute(temporary(kept, sql.SQL("*"), part.table, sql.SQL("type = ANY(%s)")), types)
    connection.execute(sql.SQL("TRUNCATE {}").format(part.table))
    connection.execute(sql.SQL("INSERT INTO {} SELECT * FROM kept").format(part.table))
    connection.execute("ANALYZE touched")
    connection.execute(_RECOUNT)
    # Without its requests, a session cannot be continued.
    connection.execute("DELETE FROM holdfast.conversation_keys WHERE session_id IN (SELECT session_id FROM touched)")
    # Its folded state has their content.
    folded = "SELECT %s || session_id FROM touched"
    connection.execute(f"DELETE FROM holdfast.shared_values WHERE key IN ({folded})", (snapshot_key(""),))
    return as_int(count)


def drop_empty_partitions(connection: PostgresConnection, *, before: float) -> int:
    """Drops the partitions that ended before a time and have no rows any more; returns how many."""
    dropped = 0
    for partition in _iterate_ended(connection, before):
        # One that is in use is dropped another time.
        with suppress(LockNotAvailable), connection.transaction():
            _limit_locks(connection)
            parent = sql.Identifier("holdfast", partition.parent)
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(parent))
            if not connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(partition.table)).fetchall():
                connection.execute(sql.SQL("DROP TABLE {}").format(partition.table))
                dropped += 1
    return dropped


def _iterate_ended(connection: PostgresConnection, before: float) -> Iterator[_Partition]:
    for parent, name, until in _fetch(connection, _ENDED_PARTITIONS, before):
        yield _Partition(str(parent), str(name), float(str(until)))


def _limit_locks(connection: PostgresConnection) -> None:
    connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS_MAX}")


def _fetch(connection: PostgresConnection, query: str, *cells: object) -> list[tuple[object, ...]]:
    return connection.execute(query, cells).fetchall()
