"""Commits a group of jobs as one transaction of a SQLite file."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path

from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.stores.event_log import EngineQueries
from holdfast.stores.instructions.tables import InstructionTables
from holdfast.stores.sql.analytics_queries import RollUpSql
from holdfast.stores.sql.events import EVENT_COLUMNS, Cell, LogQueries, build_session_upsert, merge_tallies
from holdfast.stores.sql.records import RecordQueries
from holdfast.stores.sql.rollups import RollUpWriter
from holdfast.stores.sqlite.file import explain_sqlite_error, file_missing_error
from holdfast.stores.write.batch import JobBatch
from holdfast.stores.write.queue import AppendJob, DeleteJob, PruneJob, SettleJob, WriteJob

# The default limit per statement of SQLite before 3.32, so every version accepts it.
PARAMETERS_MAX = 999
SQLITE_LOG_QUERIES = LogQueries("?")
TABLE_QUERIES = RollUpSql("?")
SQLITE_QUERIES = EngineQueries(
    SQLITE_LOG_QUERIES,
    TABLE_QUERIES,
    RecordQueries("?"),
    InstructionTables("?"),
    version="SELECT user_version FROM pragma_user_version",
    size_bytes="SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
)
INSERT_EVENT = f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"
ADD_TO_SESSION = build_session_upsert("?", least="min", greatest="max")
_VALUES = " VALUES ("
FileIdentity = tuple[int, int] | None


class SqliteWriter:
    """Owns the one connection that writes to the database `name`; `identify` says which file is there now."""

    def __init__(
        self, connection: sqlite3.Connection, name: str, models: Models, identify: Callable[[], FileIdentity]
    ) -> None:
        self._connection = connection
        self._name = name
        self._identify = identify
        self._identity = identify()
        self._rollups = RollUpWriter(models, TABLE_QUERIES)
        self._port = _SqlitePort(connection)
        self._batch = JobBatch(
            connection.execute,
            self._insert,
            queries=SQLITE_LOG_QUERIES,
            rollups=self._rollups,
            port=self._port,
            violation=sqlite3.IntegrityError,
        )
        try:
            self._check_ledger_version()
        except sqlite3.Error as error:
            raise explain_sqlite_error(error, name) from error

    def _check_ledger_version(self) -> None:
        if not self._rollups.is_current(self._port):
            with self._transaction():
                # Check again under the lock: another process may have done it.
                if not self._rollups.is_current(self._port):
                    self._rollups.reset_tables(self._port)

    def commit(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        # SQLite would keep writing to the open file even if it was moved or deleted.
        if self._identify() != self._identity:
            raise file_missing_error(self._name)
        appends = [job for job in group if isinstance(job, AppendJob)]
        try:
            if len(appends) == len(group):
                # Much faster. It fails only if an event is already known, and then the slow path below finds out which.
                with suppress(sqlite3.IntegrityError):
                    return self._commit_appends(appends)
            return self._commit_jobs(group)
        except sqlite3.Error as error:
            raise explain_sqlite_error(error, self._name) from error

    def _commit_appends(self, appends: Sequence[AppendJob]) -> list[SettleJob]:
        with self._transaction():
            self._insert(appends)
        return [partial(job.done.set_result, None) for job in appends]

    def _commit_jobs(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        with self._transaction():
            settles = [self._batch.run_job(job) for job in group]
        if any(isinstance(job, DeleteJob | PruneJob) for job in group):
            self._truncate_wal()
        return settles

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """The roll-ups computed inside the block are written when it ends."""
        self._rollups.begin()
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._rollups.write(self._port)
        self._rollups.commit()

    def _insert(self, appends: Sequence[AppendJob]) -> None:
        session_rows = merge_tallies(tally for job in appends for tally in job.session_tallies)
        self._port.write(ADD_TO_SESSION, [(*astuple(row), row.event_count) for row in session_rows])
        self._rollups.load_sessions(self._port, appends, session_rows)
        self._port.write(INSERT_EVENT, [astuple(row) for job in appends for row in job.rows])
        self._rollups.add_appends(appends)

    def _truncate_wal(self) -> None:
        # The WAL still contains the deleted text. If a reader blocks this, a later checkpoint truncates it.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()


class _SqlitePort:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fetch(self, query: str, parameters: Sequence[Cell] = (), /) -> list[tuple[object, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None:
        if _VALUES not in query:
            self._connection.executemany(query, rows)
            return
        batch_size = PARAMETERS_MAX // len(rows[0]) if rows else 1
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            self._connection.execute(_repeat_values(query, len(batch)), list(chain.from_iterable(batch)))


@cache
def _repeat_values(query: str, rows: int) -> str:
    """The statement for many rows at once: each statement releases the GIL and then waits to get it back."""
    before_values, _, values = query.partition(_VALUES)
    row, _, rest = values.partition(")")
    return f"{before_values}{_VALUES}{'), ('.join([row] * rows)}){rest}"


def identify_file(path: Path) -> FileIdentity:
    """Device and inode of the file at the path; raises StoreError if there is none."""
    try:
        status = path.stat()
    except OSError as error:
        raise file_missing_error(path) from error
    return status.st_dev, status.st_ino
