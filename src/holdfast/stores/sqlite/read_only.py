"""Reads a SQLite file without writing to it, to its folder or to the files beside it.

What takes a write (migrating an older schema, rolling up sessions, a write-ahead log without its index) is done on a
temporary copy.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import TypeVar

import msgspec

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.errors import StoreError
from holdfast.ledger.postings import LEDGER_VERSION
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.migrate import load_migrations, migrate_sqlite
from holdfast.stores.sql.analytics_queries import ANY_PENDING_SESSION, LEDGER_VERSION_QUERY, PENDING_SESSIONS
from holdfast.stores.sql.dialect import SQLITE
from holdfast.stores.sql.events import Cell, is_storable_text
from holdfast.stores.sqlite.file import (
    BUSY_SECONDS_MAX,
    READ_ERRORS,
    check_file_kind,
    check_ours,
    connect_sqlite,
    explain_sqlite_error,
)
from holdfast.stores.sqlite.writer import SqliteEngine, SqliteWriter
from holdfast.stores.write.queue import RefusingWriter, RollUpJob

_ATTEMPTS_MAX = 5
_SESSIONS_MAX = 2**62  # No limit.
_Result = TypeVar("_Result")


class ReadOnlySqliteStore(DatabaseEventLog):
    """Refuses every change. `notice` says if the file is older than this version reads and is read from a copy."""

    def __init__(self, path: str | os.PathLike[str], *, models: Models | None = None) -> None:
        self.path = Path(path).absolute()
        self._file = _FileReader(self.path, shipped_models() if models is None else models)
        self.notice = self._file.notice
        refusing = RefusingWriter(str(self.path))
        super().__init__(self._file.engine, self._file, refusing, writer=refusing)

    def roll_up_pending(self) -> None:
        self._check_usable()
        self._file.roll_up()


class _FileState(msgspec.Struct, frozen=True):
    """The database and the logs beside it, which show whether a process writes; `has_index` is that of the log."""

    stats: tuple[tuple[int, int, int] | None, ...]
    has_index: bool

    @property
    def is_at_rest(self) -> bool:
        """Whether no process has the file open for writing, and none left a log that is needed to read it."""
        _, wal, journal = self.stats
        return journal is None and (wal is None or (wal[0] == 0 and not self.has_index))


def _observe(path: Path) -> _FileState:
    stats = tuple(_stat_or_none(f"{path}{suffix}") for suffix in ("", "-wal", "-journal"))
    return _FileState(stats, os.path.exists(f"{path}-shm"))


def _stat_or_none(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


class _FileReader:
    def __init__(self, path: Path, models: Models) -> None:
        self.notice: str | None = None
        self.engine = SqliteEngine(str(path), lambda: None)  # A copy cannot be replaced.
        self._path = path
        self._models = models
        self._migrations = load_migrations("sqlite")
        self._lock = RLock()
        self._is_copy = False
        check_file_kind(path, os.R_OK)
        with _explained(path):
            self._connection = self._connect()
        try:
            version = self._read(lambda connection: check_ours(connection, path, version_max=len(self._migrations)))
            if version == 0:
                raise StoreError(f"{path} holds no store: check the path")
            if version < len(self._migrations):
                self._switch_to_copy()
                self.notice = (
                    f"{path} has schema version {version}, this Holdfast reads {len(self._migrations)}: "
                    f"read from a migrated copy; `holdfast db migrate --db {path}` migrates the file"
                )
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        """A connection that changes nothing, for the state in which the file is now.

        If no process has it open, SQLite would create an index of the log beside it, so it is opened as immutable. If
        one has, or was killed, its index is read and not changed (readonly_shm). A log without an index is copied.
        """
        self._state = _observe(self._path)
        if self._state.is_at_rest:
            return connect_sqlite(self._path, "ro&immutable=1", busy_seconds_max=BUSY_SECONDS_MAX)
        if self._state.has_index:
            connection = connect_sqlite(self._path, "ro&readonly_shm=1", busy_seconds_max=BUSY_SECONDS_MAX)
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            except sqlite3.OperationalError as error:
                connection.close()
                # The index cannot be used without changing it.
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                    raise
            else:
                return connection
        return self._copy_files()

    def _copy_files(self) -> sqlite3.Connection:
        """A copy of the database with what its logs add. It is made from the bytes, so no process may be writing."""
        for _ in range(_ATTEMPTS_MAX):
            before = _observe(self._path)
            with TemporaryDirectory(prefix="holdfast-") as folder:
                copied = Path(folder) / "copy.db"
                for suffix, status in zip(("", "-wal", "-journal"), before.stats, strict=True):
                    if status is not None:
                        shutil.copyfile(f"{self._path}{suffix}", f"{copied}{suffix}")
                if _observe(self._path) == before:
                    with closing(connect_sqlite(copied, "rw", busy_seconds_max=BUSY_SECONDS_MAX)) as connection:
                        self._is_copy = True
                        return _back_up(connection)
        raise self._changing_error()

    def _switch_to_copy(self) -> None:
        if not self._is_copy:
            copy = self._read(_back_up)
            self._connection.close()
            self._connection, self._is_copy = copy, True
        with _explained(self._path):
            migrate_sqlite(self._connection, self._migrations)

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if not all(is_storable_text(value) for value in parameters if isinstance(value, str)):
            return []
        return self._read(lambda connection: connection.execute(SQLITE.translate(query), parameters).fetchall())

    def _read(self, action: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Repeats the action if a process began to write: without locks it may have seen half of a change."""
        with self._lock, _explained(self._path):
            for _ in range(_ATTEMPTS_MAX):
                try:
                    result = action(self._connection)
                except READ_ERRORS:
                    if self._is_unchanged():
                        raise
                else:
                    if self._is_unchanged():
                        return result
                self._connection.close()
                self._connection = self._connect()
        raise self._changing_error()

    def _is_unchanged(self) -> bool:
        return self._is_copy or not self._state.is_at_rest or _observe(self._path).stats == self._state.stats

    def _changing_error(self) -> StoreError:
        return StoreError(f"{self._path} changes while it is read: try again")

    def roll_up(self) -> None:
        """Answers from a copy if the roll-up tables of the file are outdated or lack a session."""
        is_current = self.fetch(LEDGER_VERSION_QUERY, ()) == [(LEDGER_VERSION,)]
        if is_current and not self.fetch(ANY_PENDING_SESSION, ()):
            return
        with self._lock:
            self._switch_to_copy()
            # This empties outdated tables.
            writes = SqliteWriter(self._connection, self.engine, self._models)
            pending = self.fetch(PENDING_SESSIONS, ("", _SESSIONS_MAX))
            writes.commit([RollUpJob(tuple(str(session_id) for (session_id,) in pending), Future())])

    def close(self) -> None:
        self._connection.close()


def _back_up(connection: sqlite3.Connection) -> sqlite3.Connection:
    # The empty name is a temporary file that SQLite deletes; it stays in memory while it is small.
    copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    try:
        connection.backup(copy)
    except BaseException:
        copy.close()
        raise
    return copy


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except READ_ERRORS as error:
        raise explain_sqlite_error(error, path) from error
