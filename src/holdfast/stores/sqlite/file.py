"""Creates, checks and opens SQLite files, and explains why one cannot be used."""

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import StoreError, UserError
from holdfast.stores.migrate import Migration, migrate_sqlite, read_sqlite_version

APPLICATION_ID = 0x484F4C44  # "HOLD" in ASCII; marks the file as ours.
BUSY_SECONDS_MAX = 10.0  # How long to wait for a lock of another process before giving up.
# Python raises the second one if SQLite's own message quotes a damaged name.
READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_PAUSE_SECONDS = 0.02  # Between two attempts: switching to WAL takes a few milliseconds.


def prepare_file(path: Path) -> None:
    """Makes sure that the path is a regular, writable file; what it creates is readable by the owner only."""
    try:
        for folder in reversed([path.parent, *path.parent.parents]):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        try:
            # Open new files only: closing one that another store of this process has open would drop its POSIX locks.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            check_file_kind(path, os.R_OK | os.W_OK)
    except OSError as error:
        raise _explain_system(error, path) from error
    except ValueError as error:
        raise _invalid_name_error(path, error) from error


def check_file_kind(path: Path, access: int) -> None:
    """Makes sure that the path is a regular file that may be read, or read and written; creates nothing."""
    try:
        kind = path.stat().st_mode
        is_permitted = os.access(path, access)
    except FileNotFoundError as error:
        raise UserError(f"there is no store at {str(path)!r}; check the path") from error
    except OSError as error:
        raise _explain_system(error, path) from error
    except ValueError as error:
        raise _invalid_name_error(path, error) from error
    if stat.S_ISDIR(kind):
        raise UserError(f"{path} is a folder, not a database: use a file in it, such as {path / 'holdfast.db'}")
    if not stat.S_ISREG(kind):
        raise UserError(f"{path} is not a regular file: use one, or a path that does not exist yet")
    if not is_permitted:
        raise _no_permission(path, "write" if access & os.W_OK else "read")


def _invalid_name_error(path: Path, error: ValueError) -> UserError:
    return UserError(f"{str(path)!a} is not a valid file name ({error}): use another one")


def file_missing_error(path: Path | str) -> StoreError:
    return StoreError(f"{path} was moved or deleted while it was in use: put it back, then open the store again")


def open_writer(path: Path, migrations: Sequence[Migration], *, busy_seconds_max: float) -> sqlite3.Connection:
    """A connection for durable writes to a database with the current schema."""
    try:
        connection = connect_sqlite(path, "rw", busy_seconds_max=busy_seconds_max)
        try:
            check_ours(connection, path, version_max=len(migrations))
            _use_wal(connection, busy_seconds_max)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")
            migrate_sqlite(connection, migrations)
        except BaseException:
            connection.close()
            raise
    except READ_ERRORS as error:
        raise explain_sqlite_error(error, path) from error
    return connection


def open_change_connection(path: Path, *, busy_seconds_max: float) -> sqlite3.Connection:
    """A connection for changes beside the log."""
    connection = connect_sqlite(path, "rw", busy_seconds_max=busy_seconds_max)
    # A snapshot that is replaced has content of its session, which may be deleted later.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def open_reader(path: Path, *, busy_seconds_max: float) -> sqlite3.Connection:
    connection = connect_sqlite(path, "rw", busy_seconds_max=busy_seconds_max)
    connection.execute("PRAGMA query_only = ON")
    return connection


def connect_sqlite(path: Path, mode: str, *, busy_seconds_max: float) -> sqlite3.Connection:
    """Opens an existing file. The mode is rw or ro, never rwc: a deleted file must not be recreated, empty and with
    other permissions than ours.
    """
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_seconds_max,
        isolation_level=None,
        check_same_thread=False,
    )


def check_ours(connection: sqlite3.Connection, path: Path, *, version_max: int) -> int:
    """The schema version of the database, 0 if it is empty; raises StoreError if this version cannot use it."""
    with connection:
        # Read all three in one transaction: another process may be creating the file right now.
        connection.execute("BEGIN")
        version = read_sqlite_version(connection)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise StoreError(f"{path} is a database of another program: use another file")
    if version < 0:
        raise _damaged(path)
    if version > version_max:
        raise StoreError(
            f"{path} was written by a newer Holdfast (schema version {version}, this one knows {version_max}): "
            "upgrade holdfast, or use another file"
        )
    return version


def _use_wal(connection: sqlite3.Connection, busy_seconds_max: float) -> None:
    # While another process switches to WAL too, SQLite may report a lock without waiting, so wait here.
    connection.execute("PRAGMA busy_timeout = 0")
    for pauses_left in reversed(range(1 + int(busy_seconds_max / _PAUSE_SECONDS))):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            break
        except sqlite3.OperationalError as error:
            if _result_code(error) != sqlite3.SQLITE_BUSY or not pauses_left:
                raise
            time.sleep(_PAUSE_SECONDS)
    connection.execute(f"PRAGMA busy_timeout = {int(busy_seconds_max * 1000)}")


def explain_sqlite_error(error: Exception, path: Path | str) -> StoreError:
    """One line that says what to do. SQLite's own message is left out: it can quote a row."""
    match _result_code(error):
        case sqlite3.SQLITE_FULL:
            return _disk_full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _no_permission(path, "write")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"{path} cannot be opened: check that it still exists, and who owns it and its folder")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(f"{path} is locked by another program: close that program, then open the store again")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{path} is not a database: use another file, or a path that does not exist yet")
        case sqlite3.SQLITE_CONSTRAINT:
            return StoreError(f"{path} refused a change because of a constraint of its tables: check for a duplicate")
        case sqlite3.SQLITE_ERROR if "no such" in str(error):
            return StoreError(f"{path} is missing tables that Holdfast created there: restore it from a backup")
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_RANGE | sqlite3.SQLITE_MISUSE:
            return _programming_error(path, type(error).__name__)
        case None if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            return _programming_error(path, type(error).__name__)
        case sqlite3.SQLITE_CORRUPT | None:
            return _damaged(path)
        case sqlite3.SQLITE_IOERR:
            return StoreError(f"the disk failed under {path}: check the disk, then open the store again")
        case code:
            return StoreError(f"{path} cannot be used (SQLite error {code}): restore it from a backup")


def _programming_error(path: Path | str, reason: str) -> StoreError:
    return StoreError(f"{path} cannot run a statement of Holdfast ({reason}): report this as a bug in holdfast")


def _result_code(error: Exception) -> int | None:
    """SQLite's primary result code; None for errors raised by Python's sqlite3 module itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _explain_system(error: OSError, path: Path) -> StoreError:
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return _no_permission(path, "write")
        case errno.ENOSPC | errno.EDQUOT:
            return _disk_full(path)
        case _:
            return StoreError(f"{path} cannot be opened ({error.strerror}): use another file")


def _no_permission(path: Path | str, what: str) -> StoreError:
    return StoreError(f"no permission to {what} {path}: check who owns the file and its folder, or use another file")


def _damaged(path: Path | str) -> StoreError:
    return StoreError(f"{path} is damaged: restore it from a backup, or move it away to start a new one")


def _disk_full(path: Path | str) -> StoreError:
    return StoreError(f"no space left to write {path}: free some on its disk, then open the store again")
