"""The store in a PostgreSQL database, which any number of processes and machines can share.

Reads use pooled connections and reconnect once; changes beside the log use connections of their own.
"""

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError
from holdfast.ledger.postings import LEDGER_VERSION
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.migrate import load_migrations
from holdfast.stores.postgres.server import (
    LOCK_SECONDS_MAX,
    STATEMENT_SECONDS_MAX,
    ConnectionLimits,
    PostgresServer,
    open_postgres_database,
    parse_address,
)
from holdfast.stores.postgres.writer import RECONNECT_SECONDS_MAX, PostgresWriter
from holdfast.stores.sql.analytics_queries import ANY_PENDING_SESSION, LEDGER_VERSION_QUERY
from holdfast.stores.sql.connection import ConnectionPool, SqlChanges, SqlReader
from holdfast.stores.sql.events import EVENT_BYTES_MAX
from holdfast.stores.write.queue import GROUP_JOBS_MAX, QUEUE_BYTES_MAX, RefusingWriter, WriterThread


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
        server = PostgresServer(address, limits)
        reads = SqlReader(server, ConnectionPool(server.connect))
        self._read_only = read_only
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

    def roll_up_pending(self) -> None:
        if not self._read_only:
            super().roll_up_pending()
        elif self._fetch(ANY_PENDING_SESSION, ()) or self._fetch(LEDGER_VERSION_QUERY, ()) != [(LEDGER_VERSION,)]:
            raise StoreError(f"the roll-up tables of {self._name} are not complete: run `holdfast db migrate` on it")
