"""The store in a SQLite file; acknowledged events survive a crash, and processes can share the file.

Reads use pooled connections, so that no reader waits for the writer; changes beside the log use their own.
"""

import os
from functools import partial
from pathlib import Path

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import UserError
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.migrate import load_migrations
from holdfast.stores.sql.connection import ConnectionPool, SqlChanges, SqlReader
from holdfast.stores.sql.events import EVENT_BYTES_MAX
from holdfast.stores.sqlite.file import (
    BUSY_SECONDS_MAX,
    open_change_connection,
    open_reader,
    open_writer,
    prepare_file,
)
from holdfast.stores.sqlite.writer import SqliteEngine, SqliteWriter, identify_file
from holdfast.stores.write.queue import GROUP_JOBS_MAX, QUEUE_BYTES_MAX, WriterThread


class SqliteStore(DatabaseEventLog):
    """Refuses writes after one has failed (disk full, file locked for too long) until the store is reopened.

    Deleting a session also overwrites its data in the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_seconds_max: float = BUSY_SECONDS_MAX,
        group_jobs_max: int = GROUP_JOBS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        event_bytes_max: int = EVENT_BYTES_MAX,
        models: Models | None = None,
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise UserError("a SQLite store needs a file; for a log that is not stored use MemoryStore, or 'memory:'")
        self.path = Path(path).absolute()
        prepare_file(self.path)
        connection = open_writer(self.path, load_migrations("sqlite"), busy_seconds_max=busy_seconds_max)
        engine = SqliteEngine(str(self.path), partial(identify_file, self.path))
        writes = SqliteWriter(connection, engine, shipped_models() if models is None else models)
        read_pool = ConnectionPool(partial(open_reader, self.path, busy_seconds_max=busy_seconds_max))
        change_pool = ConnectionPool(partial(open_change_connection, self.path, busy_seconds_max=busy_seconds_max))
        writer = WriterThread(
            writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max
        )
        super().__init__(
            engine,
            SqlReader(engine, read_pool),
            SqlChanges(engine, change_pool),
            writer=writer,
            event_bytes_max=event_bytes_max,
        )
