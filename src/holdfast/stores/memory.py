"""An in-memory store, for tests and for sessions that need not be stored: SQLite without a file."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.events.payloads.cache import CacheControls
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.migrate import load_migrations, migrate_sqlite
from holdfast.stores.sql.connection import SqlChanges, SqlConnection, SqlReader
from holdfast.stores.sql.events import EVENT_BYTES_MAX
from holdfast.stores.sql.records import DatabaseRecords
from holdfast.stores.sqlite.writer import SqliteEngine, SqliteWriter
from holdfast.stores.write.queue import SettleJob, WriteJob, reject_job, wrap_unexpected

DAY_SECONDS, JULIAN_DAY_1970 = 86_400.0, 2_440_587.5
_ENGINE = SqliteEngine("in memory", lambda: None)  # Memory has no file that could be replaced.


class MemoryStore(DatabaseEventLog):
    """Accepts and rejects the same events as a store on disk; an append is stored when the call returns."""

    _survives_fork = True

    def __init__(
        self, *, event_bytes_max: int = EVENT_BYTES_MAX, models: Models | None = None, clock: Clock | None = None
    ) -> None:
        """`clock` is the one by which leases end, for simulated time."""
        pool = SharedConnection()
        if clock is not None:
            pool.connection.create_function("julianday", 1, lambda _: clock() / DAY_SECONDS + JULIAN_DAY_1970)
        writes = SqliteWriter(pool.connection, _ENGINE, shipped_models() if models is None else models)
        super().__init__(
            _ENGINE,
            SqlReader(_ENGINE, pool),
            SqlChanges(_ENGINE, pool),
            writer=InlineWriter(writes.commit, pool),
            event_bytes_max=event_bytes_max,
        )

    @property
    def records(self) -> DatabaseRecords:
        return _MemoryRecords(self._fetch, self._changes, self._dialect)


class _MemoryRecords(DatabaseRecords):
    async def look_up_controls(self, session_id: str) -> CacheControls:
        # Takes microseconds: handing it to a thread takes longer.
        return self.controls(session_id)


class SharedConnection:
    """The one connection to a database in memory, in the place of a pool: it is lent to one thread at a time."""

    def __init__(self) -> None:
        self.connection = _connect()
        self._lock = Lock()
        _copy_schema(self.connection)

    def borrow(self) -> sqlite3.Connection:
        self._lock.acquire()
        return self.connection

    def release(self, connection: SqlConnection) -> None:
        self._lock.release()

    def discard(self, connection: SqlConnection) -> None:
        """Keeps the connection: what it holds is nowhere else."""
        self.release(connection)

    def close(self) -> None:
        with self._lock:
            self.connection.close()


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


_schema_lock = Lock()


def _copy_schema(target: sqlite3.Connection) -> None:
    """Copies a prepared database: the migrations take 13 ms, a copy of their result 0.1 ms."""
    with _schema_lock:
        _open_schema().backup(target)


@cache
def _open_schema() -> sqlite3.Connection:
    connection = _connect()
    migrate_sqlite(connection, load_migrations("sqlite"))
    # This also sets the version of the ledger.
    SqliteWriter(connection, _ENGINE, {})
    return connection


class InlineWriter:
    """Commits each job on the caller's thread: memory has no disk to wait for.

    As with `WriterThread`, the first job that fails is the last one.
    """

    def __init__(self, commit: Callable[[Sequence[WriteJob]], Sequence[SettleJob]], pool: SharedConnection) -> None:
        self._commit = commit
        self._pool = pool
        self._refusal: StoreError | None = None

    def submit(self, job: WriteJob) -> None:
        job.done.set_running_or_notify_cancel()
        connection = self._pool.borrow()
        settles: Sequence[SettleJob] = ()
        try:
            if self._refusal is None:
                settles = self._commit([job])
        except StoreError as error:
            self._refusal = error
        except Exception as error:  # noqa: BLE001 - reported through the future, as by the writer thread
            self._refusal = wrap_unexpected(error)
        finally:
            self._pool.release(connection)
        if self._refusal is not None and not settles:
            reject_job(job, self._refusal)
        for settle in settles:
            settle()

    def is_current_thread(self) -> bool:
        return False

    def close(self, refusal: StoreError) -> None:
        self._refusal = self._refusal or refusal
