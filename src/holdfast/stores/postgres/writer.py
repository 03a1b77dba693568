"""Commits a group of jobs as one PostgreSQL transaction, and recovers when the connection is lost.

Every append first updates its session's row, which stays locked until the commit, and only then gets its sequence
numbers. So within a session they are assigned in commit order, however many servers write: a reader that continues
after a sequence number misses nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
import psycopg
from msgspec.structs import astuple
from psycopg.errors import DeadlockDetected, SerializationFailure

from holdfast.catalog.lookup import Models
from holdfast.errors import StoreError
from holdfast.stores.event_log import EngineQueries
from holdfast.stores.instructions.tables import InstructionTables
from holdfast.stores.postgres.server import (
    SCHEMA_PREFIX,
    PostgresConnection,
    escape_nul,
    explain_postgres_error,
    unescape_nul,
)
from holdfast.stores.sql.analytics_queries import RollUpSql
from holdfast.stores.sql.events import EVENT_COLUMNS, Cell, LogQueries, build_session_upsert, merge_tallies
from holdfast.stores.sql.records import RecordQueries
from holdfast.stores.sql.rollups import RollUpWriter
from holdfast.stores.write.batch import Cursor, JobBatch
from holdfast.stores.write.queue import AppendJob, DeleteJob, PruneJob, RollUpJob, SettleJob, WriteJob

RECONNECT_SECONDS_MAX = 10.0  # Outlasts the restart of a server.
COMMIT_ATTEMPTS_MAX = 5  # Deadlocks and lost connections are rare: five in a row have another cause.
POSTGRES_LOG_QUERIES = LogQueries("%s", schema=SCHEMA_PREFIX)
TABLE_QUERIES = RollUpSql("%s", schema=SCHEMA_PREFIX)
POSTGRES_QUERIES = EngineQueries(
    POSTGRES_LOG_QUERIES,
    TABLE_QUERIES,
    RecordQueries("%s", schema=SCHEMA_PREFIX),
    InstructionTables("%s", schema=SCHEMA_PREFIX),
    version=f"SELECT max(version) FROM {SCHEMA_PREFIX}versions",
    size_bytes="""
SELECT CAST(sum(pg_total_relation_size(c.oid)) AS bigint)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'holdfast' AND c.relkind = 'r'""",
)
ADD_TO_SESSION = build_session_upsert("%s", schema=SCHEMA_PREFIX, least="least", greatest="greatest")
COPY_EVENTS = f"COPY {SCHEMA_PREFIX}events ({', '.join(EVENT_COLUMNS)}) FROM STDIN"
LOCK_SESSIONS = f"SELECT 1 FROM {SCHEMA_PREFIX}sessions WHERE id = ANY(%s) ORDER BY id FOR UPDATE"

# No appends while the tables are emptied: a session that started just then would never be counted.
LOCK_SESSIONS_TABLE = f"LOCK TABLE {SCHEMA_PREFIX}sessions IN SHARE ROW EXCLUSIVE MODE"

# The transaction id tells later whether it was committed. A server with synchronous_commit = off acknowledges commits
# that are not on disk yet, which we must not.
BEGIN_TRANSACTION = """
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT pg_current_xact_id()::text, CASE WHEN current_setting('synchronous_commit') = 'off'
    THEN set_config('synchronous_commit', 'on', true) END
"""

_PAUSE_SECONDS = 0.1  # Between two attempts to reconnect.


class _PendingCommit(msgspec.Struct, frozen=True):
    """A COMMIT that was sent and not acknowledged yet."""

    transaction: str
    answers: list[SettleJob]


class PostgresWriter:
    """Owns the one connection that writes."""

    def __init__(
        self,
        connection: PostgresConnection,
        connect: Callable[[], PostgresConnection],
        name: str,
        *,
        models: Models,
        reconnect_seconds_max: float = RECONNECT_SECONDS_MAX,
    ) -> None:
        self._connection = connection
        self._connect = connect
        self._name = name
        self._pauses_max = int(reconnect_seconds_max / _PAUSE_SECONDS)
        self._pending: _PendingCommit | None = None
        self._rollups = RollUpWriter(models, TABLE_QUERIES)
        self._batch = JobBatch(
            self._execute,
            self._insert,
            queries=POSTGRES_LOG_QUERIES,
            rollups=self._rollups,
            port=self,
            violation=psycopg.IntegrityError,
        )
        if not self._rollups.is_current(self):
            self.commit([RollUpJob((), Future(), clear_first=True)])

    def commit(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        try:
            for _ in range(COMMIT_ATTEMPTS_MAX - 1):
                try:
                    return self._attempt(group)
                except (DeadlockDetected, SerializationFailure):
                    continue  # The server rolled everything back; try again.
                except psycopg.Error:
                    if not self._connection.closed:
                        raise
                    pending = self._pending
                    self._reconnect()
                    if pending is not None and self._was_committed(pending.transaction):
                        return pending.answers
            return self._attempt(group)
        except psycopg.Error as error:
            raise explain_postgres_error(error, self._name) from error

    def _attempt(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        appends = [job for job in group if isinstance(job, AppendJob)]
        if len(appends) == len(group):
            # Much faster. It fails only if an event is already known, and then the slow path below finds out which.
            with suppress(psycopg.IntegrityError):
                with self._transaction() as settles:
                    self._insert(appends)
                    settles += [partial(job.done.set_result, None) for job in appends]
                return settles
        with self._transaction() as settles:
            self._lock(group)
            settles += [self._batch.run_job(job) for job in group]
        return settles

    @contextmanager
    def _transaction(self) -> Iterator[list[SettleJob]]:
        """Yields a list for the callbacks that settle the jobs; they are valid once the block ends without an error."""
        self._pending = None
        result = self._connection.execute(BEGIN_TRANSACTION)
        result.nextset()
        ((transaction_id, _),) = result.fetchall()
        settles: list[SettleJob] = []
        self._rollups.begin()
        try:
            yield settles
            self._rollups.write(self)
        except BaseException:
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._pending = _PendingCommit(str(transaction_id), settles)
        self._connection.execute("COMMIT")
        self._rollups.commit()

    def _insert(self, appends: Sequence[AppendJob]) -> None:
        # Always in the same order, so that two processes cannot deadlock.
        session_rows = sorted(
            merge_tallies(tally for job in appends for tally in job.session_tallies), key=lambda row: row.id
        )
        with self._connection.cursor() as cursor:
            cursor.executemany(ADD_TO_SESSION, [(*_cells(row), row.event_count) for row in session_rows])
            self._rollups.load_sessions(self, appends, session_rows)
            with cursor.copy(COPY_EVENTS) as copy:
                for job in appends:
                    for row in job.rows:
                        copy.write_row(_cells(row))
        self._rollups.add_appends(appends)

    def _lock(self, group: Sequence[WriteJob]) -> None:
        sessions: set[str] = set()
        for job in group:
            match job:
                case AppendJob(rows=rows):
                    sessions.update(row.session_id for row in rows)
                case RollUpJob(session_ids=ids, clear_first=afresh):
                    sessions.update(ids)
                    if afresh:
                        self._connection.execute(LOCK_SESSIONS_TABLE)
                case DeleteJob(session_id=id) | PruneJob(session_id=id):
                    sessions.add(id)
        self._connection.execute(LOCK_SESSIONS, ([escape_nul(session) for session in sessions],))

    def _execute(self, statement: str, parameters: Sequence[str | None] = (), /) -> Cursor:
        return self._connection.execute(statement, [escape_nul(value) for value in parameters])

    def fetch(self, query: str, parameters: Sequence[Cell] = (), /) -> list[tuple[object, ...]]:
        rows = self._connection.execute(query, [escape_nul(value) for value in parameters]).fetchall()
        return [tuple(map(unescape_nul, row)) for row in rows]

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(query, [[escape_nul(value) for value in row] for row in rows])

    def _was_committed(self, transaction: str) -> bool:
        """Whether a commit took effect although its acknowledgement was lost; raises StoreError if unknown."""
        for pauses_left in reversed(range(1 + self._pauses_max)):
            ((status,),) = self._connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchall()
            if status in ("committed", "aborted"):
                return bool(status == "committed")
            if status is None or not pauses_left:
                break
            time.sleep(_PAUSE_SECONDS)
        raise StoreError(
            f"the connection to {self._name} was lost during a commit, and it is unknown whether it took effect: "
            "open the store again and check whether the last events are there"
        )

    def _reconnect(self) -> None:
        for pauses_left in reversed(range(1 + self._pauses_max)):
            try:
                self._connection = self._connect()
                return
            except psycopg.OperationalError:
                if not pauses_left:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


def _cells(row: msgspec.Struct) -> tuple[object, ...]:
    return tuple(map(escape_nul, astuple(row)))
