"""The SQLite engine, and how it commits a group of jobs as one transaction of a file."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path

from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.errors import StoreError
from holdfast.stores.sql.connection import SqlConnection
from holdfast.stores.sql.dialect import PARAMETERS_MAX, SQLITE
from holdfast.stores.sql.events import INSERT_EVENT, Cell, EventRow
from holdfast.stores.sqlite.file import READ_ERRORS, explain_sqlite_error, file_missing_error
from holdfast.stores.write.group_writer import GroupWriter
from holdfast.stores.write.queue import DeleteJob, PruneJob, SettleJob, WriteJob

_VALUES = "VALUES ("
FileIdentity = tuple[int, int] | None


def identify_file(path: Path) -> FileIdentity:
    """Device and inode of the file at the path; raises StoreError if there is none."""
    try:
        status = path.stat()
    except OSError as error:
        raise file_missing_error(path) from error
    return status.st_dev, status.st_ino


class SqliteEngine:
    """The engine of the database `name`; `identify` says which file is there now, because it may be replaced."""

    dialect = SQLITE
    errors: tuple[type[Exception], ...] = READ_ERRORS
    violation: type[Exception] = sqlite3.IntegrityError
    refusals: tuple[type[Exception], ...] = (
        *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError),
        *(OverflowError, UnicodeError),
    )

    def __init__(self, name: str, identify: Callable[[], FileIdentity]) -> None:
        self.name = name
        self._identify = identify
        self._identity = identify()

    def is_lost(self, connection: SqlConnection) -> bool:
        return False

    def is_current(self, connection: SqlConnection) -> bool:
        return self._identify() == self._identity

    def begin(self, connection: SqlConnection, *, synced: bool, lock_seconds_max: float | None = None) -> None:
        connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
        if lock_seconds_max is None:
            connection.execute("BEGIN IMMEDIATE")
            return
        ((usual_ms,),) = connection.execute("PRAGMA busy_timeout").fetchall()
        connection.execute(f"PRAGMA busy_timeout = {int(lock_seconds_max * 1000)}")
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            connection.execute(f"PRAGMA busy_timeout = {usual_ms}")

    def explain(self, error: Exception) -> StoreError:
        return explain_sqlite_error(error, self.name)


class SqliteWriter(GroupWriter):
    def __init__(self, connection: sqlite3.Connection, engine: SqliteEngine, models: Models) -> None:
        super().__init__(engine, connection, models)
        self._name = engine.name
        try:
            self._reset_outdated_tables()
        except sqlite3.Error as error:
            raise engine.explain(error) from error

    def commit(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        # SQLite would keep writing to the open file even if it was moved or deleted.
        if not self._engine.is_current(self._connection):
            raise file_missing_error(self._name)
        try:
            settles = self._commit_group(group)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self._explain_failure(group, error) from error
        if any(isinstance(job, DeleteJob | PruneJob) for job in group):
            self._truncate_wal()
        return settles

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _lock(self, group: Sequence[WriteJob]) -> None:
        """The transaction has locked the whole file."""

    def _insert_events(self, rows: Sequence[EventRow]) -> None:
        self.write(INSERT_EVENT, [astuple(row) for row in rows])

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None:
        if _VALUES not in query:
            for row in rows:
                self._execute(query, row)
            return
        batch_size = PARAMETERS_MAX // len(rows[0]) if rows else 1
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            self._execute(_repeat_values(query, len(batch)), list(chain.from_iterable(batch)))

    def _truncate_wal(self) -> None:
        # The WAL still contains the deleted text. If a reader blocks this, a later checkpoint truncates it.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@cache
def _repeat_values(query: str, rows: int) -> str:
    """The statement for many rows at once: each statement releases the GIL and then waits to get it back."""
    before_values, _, values = query.partition(_VALUES)
    row, _, rest = values.partition(")")
    return f"{before_values}{_VALUES}{'), ('.join([row] * rows)}){rest}"
