"""The event log in a PostgreSQL database, which any number of processes and machines can share."""

from functools import partial

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.stores.database import DatabaseLog
from holdfast.stores.instructions_tables import instruction_tables
from holdfast.stores.migrate import load
from holdfast.stores.postgres_address import read_address
from holdfast.stores.postgres_changes import PostgresChanges
from holdfast.stores.postgres_reads import PostgresReads
from holdfast.stores.postgres_server import (
    LOCK_SECONDS_MAX,
    SCHEMA,
    STATEMENT_SECONDS_MAX,
    Limits,
    connect,
    open_database,
)
from holdfast.stores.postgres_writes import ASKED, RECONNECT_SECONDS_MAX, PostgresWrites
from holdfast.stores.record_queries import record_queries
from holdfast.stores.rows import EVENT_BYTES_MAX
from holdfast.stores.writer import GROUP_JOBS_MAX, QUEUE_BYTES_MAX, Writer


class PostgresStore(DatabaseLog):
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
    ) -> None:
        address = read_address(url)
        limits = Limits(lock_seconds_max=lock_seconds_max, statement_seconds_max=statement_seconds_max)
        connection = open_database(address, load("postgres"), limits)
        reconnect = partial(connect, address, limits)
        catalog = shipped_models() if models is None else models
        writes = PostgresWrites(
            connection, reconnect, address.name, models=catalog, reconnect_seconds_max=reconnect_seconds_max
        )
        writer = Writer(writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max)
        reads = PostgresReads(reconnect, address.name)
        super().__init__(
            address.name,
            ASKED,
            reads,
            writer,
            event_bytes_max=event_bytes_max,
            record_queries=record_queries("%s", schema=SCHEMA),
            changes=PostgresChanges(reconnect, address.name),
            instruction_tables=instruction_tables("%s", schema=SCHEMA),
        )
