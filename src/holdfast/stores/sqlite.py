"""The event log in a SQLite file; acknowledged events survive a crash, and processes can share the file."""

import os
from functools import partial
from pathlib import Path

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import UserError
from holdfast.stores.database import DatabaseLog
from holdfast.stores.instructions_tables import instruction_tables
from holdfast.stores.migrate import load
from holdfast.stores.record_queries import record_queries
from holdfast.stores.rows import EVENT_BYTES_MAX
from holdfast.stores.sqlite_changes import SqliteChanges
from holdfast.stores.sqlite_file import BUSY_SECONDS_MAX, open_changer, open_reader, open_writer, prepare_file
from holdfast.stores.sqlite_reads import SqliteReads
from holdfast.stores.sqlite_writes import ASKED, SqliteWrites
from holdfast.stores.writer import GROUP_JOBS_MAX, QUEUE_BYTES_MAX, Writer


class SqliteStore(DatabaseLog):
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
        connection = open_writer(self.path, load("sqlite"), busy_seconds_max=busy_seconds_max)
        catalog = shipped_models() if models is None else models
        writes = SqliteWrites(connection, self.path, catalog)
        reads = SqliteReads(partial(open_reader, self.path, busy_seconds_max=busy_seconds_max), self.path)
        writer = Writer(writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max)
        changes = SqliteChanges(partial(open_changer, self.path, busy_seconds_max=busy_seconds_max), self.path)
        super().__init__(
            str(self.path),
            ASKED,
            reads,
            writer,
            event_bytes_max=event_bytes_max,
            record_queries=record_queries("?"),
            changes=changes,
            instruction_tables=instruction_tables("?"),
        )
