"""The store in a SQLite file; acknowledged events survive a crash, and processes can share the file.

Reads use pooled connections, so that no reader waits for the writer; changes beside the log use their own.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import UserError
from holdfast.stores.event_log import ConnectionPool, DatabaseEventLog
from holdfast.stores.migrate import load_migrations
from holdfast.stores.sql.events import EVENT_BYTES_MAX, Cell, is_storable_text
from holdfast.stores.sqlite.file import (
    BUSY_SECONDS_MAX,
    READ_ERRORS,
    explain_sqlite_error,
    open_change_connection,
    open_reader,
    open_writer,
    prepare_file,
)
from holdfast.stores.sqlite.writer import SQLITE_QUERIES, FileIdentity, SqliteWriter, identify_file
from holdfast.stores.write.queue import GROUP_JOBS_MAX, QUEUE_BYTES_MAX, SqlStep, TooFewRowsError, WriterThread


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
        catalog = shipped_models() if models is None else models
        name, identify = str(self.path), partial(identify_file, self.path)
        writes = SqliteWriter(connection, name, catalog, identify)
        read_pool = ConnectionPool(partial(open_reader, self.path, busy_seconds_max=busy_seconds_max))
        change_pool = ConnectionPool(partial(open_change_connection, self.path, busy_seconds_max=busy_seconds_max))
        writer = WriterThread(
            writes.commit, writes.close, group_jobs_max=group_jobs_max, queue_bytes_max=queue_bytes_max
        )
        super().__init__(
            name,
            SQLITE_QUERIES,
            SqliteReader(read_pool, name),
            SqliteChangeRunner(change_pool, name, identify),
            writer=writer,
            event_bytes_max=event_bytes_max,
        )


class Connections(Protocol):
    """Lends connections to threads."""

    def borrow(self) -> sqlite3.Connection: ...

    def release(self, connection: sqlite3.Connection, /) -> None: ...

    def close_idle(self) -> None: ...

    def close(self) -> None: ...


class SqliteChangeRunner:
    def __init__(self, pool: Connections, name: str, identify: Callable[[], FileIdentity]) -> None:
        self._pool = pool
        self._name = name
        self._identify = identify
        self._identity = identify()

    def run_statement(self, statement: str, parameters: Sequence[Cell]) -> int:
        if not all(is_storable_text(value) for value in parameters if isinstance(value, str)):
            return 0
        try:
            connection = self._borrow_current()
            try:
                connection.execute("PRAGMA synchronous = FULL")
                return connection.execute(statement, parameters).rowcount
            finally:
                self._pool.release(connection)
        except sqlite3.Error as error:
            raise explain_sqlite_error(error, self._name) from error

    def run_steps(self, steps: Sequence[SqlStep], *, synced: bool = True) -> bool:
        if not all(is_storable_text(cell) for step in steps for cell in step.cells if isinstance(cell, str)):
            return False
        try:
            connection = self._borrow_current()
            try:
                connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    for step in steps:
                        if connection.execute(step.statement, step.cells).rowcount < step.rows_min:
                            raise TooFewRowsError
            finally:
                self._pool.release(connection)
        except (sqlite3.IntegrityError, TooFewRowsError):
            return False
        except sqlite3.Error as error:
            raise explain_sqlite_error(error, self._name) from error
        return True

    def _borrow_current(self) -> sqlite3.Connection:
        """A connection to the file that is at the path now; it may have been replaced."""
        identity = self._identify()
        if identity != self._identity:
            self._pool.close_idle()
            self._identity = identity
        return self._pool.borrow()

    def close(self) -> None:
        self._pool.close()


class SqliteReader:
    def __init__(self, pool: Connections, name: str) -> None:
        self._pool = pool
        self._name = name

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if not all(is_storable_text(value) for value in parameters if isinstance(value, str)):
            return []
        try:
            connection = self._pool.borrow()
            try:
                rows: list[tuple[object, ...]] = connection.execute(query, parameters).fetchall()
            finally:
                self._pool.release(connection)
        except READ_ERRORS as error:
            raise explain_sqlite_error(error, self._name) from error
        return rows

    def close(self) -> None:
        self._pool.close()
