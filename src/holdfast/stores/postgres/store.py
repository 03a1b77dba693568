"""The store in a PostgreSQL database, which any number of processes and machines can share.

Reads use pooled connections and reconnect once; changes beside the log use connections of their own.
"""

from collections.abc import Callable, Sequence
from functools import partial

import psycopg

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError
from holdfast.ledger.postings import LEDGER_VERSION
from holdfast.stores.event_log import ConnectionPool, DatabaseEventLog
from holdfast.stores.migrate import load_migrations
from holdfast.stores.postgres.server import (
    LOCK_SECONDS_MAX,
    STATEMENT_SECONDS_MAX,
    ConnectionLimits,
    PostgresConnection,
    connect_postgres,
    escape_nul,
    explain_postgres_error,
    open_postgres_database,
    parse_address,
    unescape_nul,
)
from holdfast.stores.postgres.writer import POSTGRES_QUERIES, RECONNECT_SECONDS_MAX, PostgresWriter
from holdfast.stores.sql.events import EVENT_BYTES_MAX, Cell, is_storable_text
from holdfast.stores.write.queue import (
    GROUP_JOBS_MAX,
    QUEUE_BYTES_MAX,
    RefusingWriter,
    SqlStep,
    TooFewRowsError,
    WriterThread,
)


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
    ) -> None:
        address = parse_address(url)
        limits = ConnectionLimits(
            lock_seconds_max=lock_seconds_max, statement_seconds_max=statement_seconds_max, read_only=read_only
        )
        connection = open_postgres_database(address, load_migrations("postgres"), limits)
        reconnect = partial(connect_postgres, address, limits)
        reads = PostgresReader(reconnect, address.name)
        self._read_only = read_only
        if read_only:
            connection.close()
            refusing = RefusingWriter(address.name)
            super().__init__(
                address.name, POSTGRES_QUERIES, reads, refusing, writer=refusing, event_bytes_max=event_bytes_max
            )
            return
        catalog = shipped_models() if models is None else models
        writes = PostgresWriter(
            connection, reconnect, address.name, models=catalog, reconnect_seconds_max=reconnect_seconds_max
        )
        writer = WriterThread(
            writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max
        )
        changes = PostgresChangeRunner(reconnect, address.name)
        super().__init__(address.name, POSTGRES_QUERIES, reads, changes, writer=writer, event_bytes_max=event_bytes_max)

    def roll_up_pending(self) -> None:
        if not self._read_only:
            super().roll_up_pending()
        elif self._fetch(self._table_queries.any_pending_session, ()) or self._fetch(
            self._table_queries.version, ()
        ) != [(LEDGER_VERSION,)]:
            raise StoreError(f"the roll-up tables of {self._name} are not complete: run `holdfast db migrate` on it")


class PostgresChangeRunner:
    def __init__(self, connect: Callable[[], PostgresConnection], name: str) -> None:
        self._connect = connect
        self._name = name
        self._pool = ConnectionPool(connect)

    def run_statement(self, statement: str, parameters: Sequence[Cell]) -> int:
        if not all(is_storable_text(value) for value in parameters if isinstance(value, str)):
            return 0
        try:
            with self._connect() as connection:
                return connection.execute(statement, [escape_nul(value) for value in parameters]).rowcount
        except psycopg.Error as error:
            raise explain_postgres_error(error, self._name) from error

    def run_steps(self, steps: Sequence[SqlStep], *, synced: bool = True) -> bool:
        if not all(is_storable_text(cell) for step in steps for cell in step.cells if isinstance(cell, str)):
            return False
        try:
            connection = self._borrow_live()
            try:
                with connection.transaction():
                    if not synced:
                        connection.execute("SET LOCAL synchronous_commit = off")
                    for step in steps:
                        cells = [escape_nul(cell) for cell in step.cells]
                        if connection.execute(step.statement, cells).rowcount < step.rows_min:
                            raise TooFewRowsError
            finally:
                if not connection.closed:
                    self._pool.release(connection)
        except (psycopg.errors.IntegrityError, TooFewRowsError):
            return False
        except psycopg.Error as error:
            raise explain_postgres_error(error, self._name) from error
        return True

    def _borrow_live(self) -> PostgresConnection:
        """A connection that responds: a transaction must not be retried after it has begun."""
        connection = self._pool.borrow()
        try:
            connection.execute("SELECT 1")
        except psycopg.OperationalError:
            # A restarted server has closed all pooled connections.
            connection.close()
            self._pool.close_idle()
            return self._connect()
        return connection

    def close(self) -> None:
        self._pool.close()


class PostgresReader:
    def __init__(self, connect: Callable[[], PostgresConnection], name: str) -> None:
        self._pool = ConnectionPool(connect)
        self._name = name

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if not all(is_storable_text(value) for value in parameters if isinstance(value, str)):
            return []
        cells = [escape_nul(value) for value in parameters]
        try:
            try:
                rows = self._query(query, cells)
            except _ConnectionLostError:
                rows = self._query(query, cells)
        except psycopg.Error as error:
            raise explain_postgres_error(error, self._name) from error
        return [tuple(map(unescape_nul, row)) for row in rows]

    def _query(self, query: str, cells: Sequence[object]) -> list[tuple[object, ...]]:
        connection = self._pool.borrow()
        try:
            rows = connection.execute(query, cells).fetchall()
        except psycopg.Error as error:
            is_lost = connection.closed
            connection.close()
            if not is_lost:
                raise
            # A restarted server has closed all pooled connections.
            self._pool.close_idle()
            raise _ConnectionLostError from error
        self._pool.release(connection)
        return rows

    def close(self) -> None:
        self._pool.close()


class _ConnectionLostError(psycopg.OperationalError):
    """The connection was closed before the result arrived."""
