"""The store in a PostgreSQL database, which any number of processes and machines can share.

Reads use pooled connections and reconnect once; changes beside the log use connections of their own. The writer commits
a group of jobs as one transaction, and recovers when the connection is lost.

Every append first updates its session's row, which stays locked until the commit, and only then gets its sequence
numbers. So within a session they are assigned in commit order, however many servers write: a reader that continues
after a sequence number misses nothing.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial

import msgspec
import psycopg
from msgspec.structs import astuple
from psycopg.errors import (
    DeadlockDetected,
    InsufficientPrivilege,
    InvalidParameterValue,
    ReadOnlySqlTransaction,
    SerializationFailure,
)

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError
from holdfast.events.records import OpenNotifications
from holdfast.ledger.postings import LEDGER_VERSION
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.migrate import MigrationMode, load_migrations
from holdfast.stores.postgres.server import (
    LOCK_SECONDS_MAX,
    NOTIFY,
    NOTIFY_SECONDS_MIN,
    STATEMENT_SECONDS_MAX,
    ConnectionLimits,
    EventNotifications,
    PostgresConnection,
    PostgresServer,
    is_connection_failure,
    open_postgres_database,
    parse_address,
)
from holdfast.stores.postgres.upkeep import clear_partitions, drop_empty_partitions, keep_up
from holdfast.stores.sql.analytics_queries import ANY_PENDING_SESSION, LEDGER_VERSION_QUERY
from holdfast.stores.sql.connection import ConnectionPool, SqlChanges, SqlReader
from holdfast.stores.sql.dialect import POSTGRES, escape_nul
from holdfast.stores.sql.events import EVENT_BYTES_MAX, EVENT_COLUMNS, Cell, EventRow, as_int
from holdfast.stores.write.group_writer import GroupWriter
from holdfast.stores.write.queue import (
    GROUP_JOBS_MAX,
    QUEUE_BYTES_MAX,
    AppendJob,
    DeleteJob,
    PruneJob,
    RefusingWriter,
    RollUpJob,
    SettleJob,
    WriteJob,
    WriterThread,
)

RECONNECT_SECONDS_MAX = 10.0  # Outlasts the restart of a server.
COMMIT_ATTEMPTS_MAX = 5  # Deadlocks and lost connections are rare: five in a row have another cause.
COPY_EVENTS = f"COPY holdfast.events ({', '.join(EVENT_COLUMNS)}) FROM STDIN"
LOCK_SESSIONS = "SELECT 1 FROM holdfast.sessions WHERE id = ANY(%s) ORDER BY id FOR UPDATE"

# No appends while the tables are emptied: a session that started just then would never be counted.
LOCK_SESSIONS_TABLE = "LOCK TABLE holdfast.sessions IN SHARE ROW EXCLUSIVE MODE"

# The transaction id tells later whether it was committed. A server with synchronous_commit = off acknowledges commits
# that are not on disk yet, which we must not.
BEGIN_TRANSACTION = """
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT pg_current_xact_id()::text, CASE WHEN current_setting('synchronous_commit') = 'off'
    THEN set_config('synchronous_commit', 'on', true) END
"""

_PAUSE_SECONDS = 0.1  # Between two attempts to reconnect.
UPKEEP_SECONDS = 3_600.0  # Partitions are created months ahead, and sums of yesterday are merged some day.


class _PendingCommit(msgspec.Struct, frozen=True):
    """A COMMIT that was sent and not acknowledged yet."""

    transaction: str
    answers: list[SettleJob]


class PostgresWriter(GroupWriter):
    _connection: PostgresConnection

    def __init__(
        self,
        connection: PostgresConnection,
        server: PostgresServer,
        *,
        models: Models,
        reconnect_seconds_max: float = RECONNECT_SECONDS_MAX,
    ) -> None:
        super().__init__(server, connection, models)
        self._server = server
        self._pauses_max = int(reconnect_seconds_max / _PAUSE_SECONDS)
        self._transaction_id = ""
        self._notified_at = float("-inf")
        self._pending: _PendingCommit | None = None
        self._upkeep_due = 0.0
        self._reset_outdated_tables()

    def commit(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        self._pending = None
        try:
            self._keep_up()
            for attempts_left in reversed(range(COMMIT_ATTEMPTS_MAX)):
                try:
                    # The connection may be lost again while the outcome is asked for, which is then still to be known.
                    if self._pending is not None and self._was_committed(self._pending.transaction, group):
                        return self._pending.answers
                    return self._commit_group(group)
                except (DeadlockDetected, SerializationFailure):
                    # The server rolled everything back; try again.
                    self._pending = None
                    if not attempts_left:
                        raise
                except psycopg.Error as error:
                    if not attempts_left or not (self._connection.closed or is_connection_failure(error)):
                        raise
                    self._reconnect()
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            raise self._explain_failure(group, error) from error
        raise AssertionError("every attempt returns or raises")

    def _keep_up(self) -> None:
        """Never keeps a group from being written.

        Without the rights that it needs, events of later months are stored in the partition for all other times, and
        sums are added to the rows that all share. A lost connection is repaired where the group is written.
        """
        if time.monotonic() < self._upkeep_due:
            return
        self._upkeep_due = time.monotonic() + UPKEEP_SECONDS
        with suppress(psycopg.OperationalError, InsufficientPrivilege, ReadOnlySqlTransaction):
            if not self._rollups.writer_number:
                ((number,),) = self._connection.execute("SELECT nextval('holdfast.writer_numbers')").fetchall()
                self._rollups.writer_number = as_int(number)
            keep_up(self._connection)

    def _begin(self) -> None:
        self._pending = None
        result = self._connection.execute(f"{BEGIN_TRANSACTION}{self._server.limit_transaction()}")
        result.nextset()
        ((transaction_id, _),) = result.fetchall()
        self._transaction_id = str(transaction_id)

    def _commit(self, settles: Sequence[SettleJob]) -> None:
        self._pending = _PendingCommit(self._transaction_id, list(settles))
        super()._commit(settles)
        now = time.monotonic()
        if now - self._notified_at >= NOTIFY_SECONDS_MIN:
            self._notified_at = now
            # The commit has succeeded; a lost connection is noticed by the next one.
            with suppress(psycopg.Error):
                self._connection.execute(NOTIFY)

    def _insert_events(self, rows: Sequence[EventRow]) -> None:
        self._copy(COPY_EVENTS, map(astuple, rows))

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Sequence[Cell]], /) -> None:
        # COPY is three to four times as fast, but knows no ON CONFLICT.
        if self._is_fast_path:
            self._copy(f"COPY holdfast.{table} ({', '.join(columns)}) FROM STDIN", rows)
        else:
            super().insert(table, columns, rows)

    def _copy(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(POSTGRES.encode_cells(row))

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(POSTGRES.translate(query), [POSTGRES.encode_cells(row) for row in rows])

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

    def _was_committed(self, transaction: str, group: Sequence[WriteJob]) -> bool:
        """Whether a commit took effect although its acknowledgement was lost; raises StoreError if unknown."""
        for pauses_left in reversed(range(1 + self._pauses_max)):
            try:
                ((status,),) = self._connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchall()
            except InvalidParameterValue:
                # "in the future": after a failover to a server that the transaction never reached.
                return False
            if status in ("committed", "aborted"):
                # On such a server, another transaction may have got the same id since.
                return bool(status == "committed") and self._has_any_event(group)
            if status is None or not pauses_left:
                break
            time.sleep(_PAUSE_SECONDS)
        raise StoreError(
            f"the connection to {self._server.name} was lost during a commit, and it is unknown whether it took "
            "effect: open the store again and check whether the last events are there"
        )

    def _has_any_event(self, group: Sequence[WriteJob]) -> bool:
        """True without appends. If all appends of a group were refused, repeating it changes nothing."""
        rows = [row for job in group if isinstance(job, AppendJob) for row in job.rows]
        query = "SELECT 1 FROM holdfast.events WHERE id = ANY(%s) LIMIT 1"
        return not rows or bool(self._connection.execute(query, ([escape_nul(row.id) for row in rows],)).fetchall())

    def _reconnect(self) -> None:
        # A connection that failed may still count as open; the server ends its transaction when it is closed.
        self.close()
        for pauses_left in reversed(range(1 + self._pauses_max)):
            try:
                self._connection = self._server.connect()
                return
            except psycopg.OperationalError:
                if not pauses_left:
                    raise
                time.sleep(_PAUSE_SECONDS)


class PostgresStore(DatabaseEventLog):
    """Reconnects for reads and writes after a lost connection, and writes nothing twice.

    If it cannot reconnect within `reconnect_seconds_max`, or a write fails for another reason, it accepts no more
    writes until the store is reopened.
    """

    def __init__(
        self,
        url: str,
        *,
        lock_seconds_max: float = LOCK_SECONDS_MAX,
        statement_seconds_max: float = STATEMENT_SECONDS_MAX,
        reconnect_seconds_max: float = RECONNECT_SECONDS_MAX,
        group_jobs_max: int = GROUP_JOBS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        event_bytes_max: int = EVENT_BYTES_MAX,
        models: Models | None = None,
        read_only: bool = False,
        migration_mode: MigrationMode = "create",
    ) -> None:
        address = parse_address(url)
        limits = ConnectionLimits(
            lock_seconds_max=lock_seconds_max, statement_seconds_max=statement_seconds_max, read_only=read_only
        )
        connection = open_postgres_database(address, load_migrations("postgres"), limits, migration_mode)
        server = PostgresServer(address, limits)
        reads = SqlReader(server, ConnectionPool(server.connect))
        self._read_only = read_only
        self._address = address
        self._server = server
        if read_only:
            connection.close()
            refusing = RefusingWriter(address.name)
            super().__init__(server, reads, refusing, writer=refusing)
            return
        catalog = shipped_models() if models is None else models
        writes = PostgresWriter(connection, server, models=catalog, reconnect_seconds_max=reconnect_seconds_max)
        writer = WriterThread(
            writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max
        )
        changes = SqlChanges(server, ConnectionPool(server.connect))
        super().__init__(server, reads, changes, writer=writer, event_bytes_max=event_bytes_max)
        if migration_mode != "create":
            # Also for replicas whose role may not create tables.
            self._maintain(keep_up)

    def make_notifications(self, direct_url: str | None = None) -> OpenNotifications:
        address = self._address if direct_url is None else parse_address(direct_url)
        return lambda on_events: EventNotifications(address, on_events)

    def clear_partitions(self, kept_types: Sequence[str], *, before: float) -> int:
        return self._maintain(partial(clear_partitions, kept_types=kept_types, before=before))

    def drop_empty_partitions(self, *, before: float) -> int:
        return self._maintain(partial(drop_empty_partitions, before=before))

    def _maintain(self, work: Callable[[PostgresConnection], int]) -> int:
        """Runs on a connection of its own: appends go on meanwhile."""
        self._check_usable()
        try:
            with closing(self._server.connect()) as connection:
                return work(connection)
        except psycopg.Error as error:
            raise self._server.explain(error) from error

    def roll_up_pending(self) -> None:
        if not self._read_only:
            super().roll_up_pending()
        elif self._fetch(ANY_PENDING_SESSION, ()) or any(
            as_int(version) < LEDGER_VERSION for (version,) in self._fetch(LEDGER_VERSION_QUERY, ())
        ):
            raise StoreError(f"the roll-up tables of {self._name} are not complete: run `holdfast db migrate` on it")
