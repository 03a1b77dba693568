"""Reads and changes of a database beside its log, the same for all engines: pooled connections and their errors."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Protocol

from holdfast.errors import StoreError
from holdfast.stores.sql.dialect import SqlDialect
from holdfast.stores.sql.events import Cell, is_storable_text
from holdfast.stores.write.queue import SqlStep

IDLE_MAX = 4  # Open connections that nobody uses still cost a file handle, or a PostgreSQL server process.


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> list[tuple[object, ...]]: ...


class SqlConnection(Protocol):
    """A connection of a driver; every statement is a transaction of its own until one is begun."""

    def execute(self, statement: str, cells: Sequence[object] = ..., /) -> Cursor: ...

    def close(self) -> None: ...


class Engine(Protocol):
    """What the shared code must know of an engine; `errors` and `violation` are exceptions of its driver.

    `refusals` are those that a value causes, not the state of the database: the same append fails again, others do not.
    """

    name: str
    dialect: SqlDialect
    errors: tuple[type[Exception], ...]
    violation: type[Exception]
    refusals: tuple[type[Exception], ...]

    def is_lost(self, connection: SqlConnection) -> bool:
        """Whether an error has ended the connection, so that the statement may be tried on another one."""

    def is_current(self, connection: SqlConnection) -> bool:
        """Whether a connection that was idle still leads to the database."""

    def begin(self, connection: SqlConnection, *, synced: bool, lock_seconds_max: float | None = None) -> None:
        """Begins a transaction; without `synced` its commit does not wait for the disk."""

    def explain(self, error: Exception) -> StoreError:
        """One line about an error of the driver; what the driver says is left out, because it can quote a row."""


class Reader(Protocol):
    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        """All rows of a query; none if a parameter is text that no database can store."""

    def close(self) -> None: ...


class ChangeRunner(Protocol):
    def run_statement(self, statement: str, parameters: Sequence[Cell]) -> int:
        """Runs one statement, durable once this returns, and returns the number of rows it changed."""

    def run_steps(
        self, steps: Sequence[SqlStep], *, synced: bool = True, lock_seconds_max: float | None = None
    ) -> bool:
        """Runs all steps in one transaction; returns False, with nothing changed, if one of them fails.

        A step fails if it changes too few rows or violates a constraint. Without `synced` the change survives a crash
        of the process, but not a power failure. `lock_seconds_max` shortens how long it waits for a lock.
        """

    def close(self) -> None: ...


class Connections(Protocol):
    """Lends connections to threads."""

    def borrow(self) -> SqlConnection: ...

    def release(self, connection: SqlConnection, /) -> None: ...

    def discard(self, connection: SqlConnection, /) -> None:
        """Takes back a connection that is of no use any more; then those that are idle are not either."""

    def close(self) -> None: ...


class ConnectionPool:
    """Any number of threads may borrow; at most `IDLE_MAX` idle connections stay open."""

    def __init__(self, connect: Callable[[], SqlConnection]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._idle: list[SqlConnection] = []
        self._idle_max = IDLE_MAX

    def borrow(self) -> SqlConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def release(self, connection: SqlConnection) -> None:
        with self._lock:
            if len(self._idle) < self._idle_max:
                self._idle.append(connection)
                return
        connection.close()

    def discard(self, connection: SqlConnection) -> None:
        connection.close()
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections, and from now on every connection that is given back."""
        with self._lock:
            self._idle_max = 0
        self._close_idle()


class SqlReader:
    """No reader waits for the writer; one whose connection was lost tries once more."""

    def __init__(self, engine: Engine, pool: Connections) -> None:
        self._engine = engine
        self._pool = pool

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if not _are_storable(parameters):
            return []
        dialect = self._engine.dialect
        statement, cells = dialect.translate(query), dialect.encode_cells(parameters)
        try:
            rows = self._query(statement, cells, retries=1)
        except self._engine.errors as error:
            raise self._engine.explain(error) from error
        return dialect.decode_rows(rows)

    def _query(self, statement: str, cells: Sequence[object], *, retries: int) -> list[tuple[object, ...]]:
        connection = self._pool.borrow()
        try:
            rows = connection.execute(statement, cells).fetchall()
        except self._engine.errors:
            if not self._engine.is_lost(connection):
                self._pool.release(connection)
                raise
            # A restarted server has closed all pooled connections.
            self._pool.discard(connection)
            if not retries:
                raise
            return self._query(statement, cells, retries=retries - 1)
        self._pool.release(connection)
        return rows

    def close(self) -> None:
        self._pool.close()


class SqlChanges:
    """Each change is a transaction."""

    def __init__(self, engine: Engine, pool: Connections) -> None:
        self._engine = engine
        self._pool = pool

    def run_statement(self, statement: str, parameters: Sequence[Cell]) -> int:
        if not _are_storable(parameters):
            return 0
        try:
            return self._run([SqlStep(statement, tuple(parameters))], synced=True)
        except self._engine.errors as error:
            raise self._engine.explain(error) from error

    def run_steps(
        self, steps: Sequence[SqlStep], *, synced: bool = True, lock_seconds_max: float | None = None
    ) -> bool:
        if not all(_are_storable(step.cells) for step in steps):
            return False
        try:
            self._run(steps, synced=synced, lock_seconds_max=lock_seconds_max)
        except (self._engine.violation, _TooFewRowsError):
            return False
        except self._engine.errors as error:
            raise self._engine.explain(error) from error
        return True

    def _run(self, steps: Sequence[SqlStep], *, synced: bool, lock_seconds_max: float | None = None) -> int:
        """The number of rows that the last step changed."""
        dialect, changed = self._engine.dialect, 0
        connection = self._pool.borrow()
        # Asked first, because a transaction must not be retried after it has begun.
        if not self._engine.is_current(connection):
            self._pool.discard(connection)
            connection = self._pool.borrow()
        try:
            self._engine.begin(connection, synced=synced, lock_seconds_max=lock_seconds_max)
            for step in steps:
                cells = dialect.encode_cells(step.cells)
                # Drivers count -1 rows for a statement that changes no rows.
                changed = max(0, connection.execute(dialect.translate(step.statement), cells).rowcount)
                if changed < step.rows_min:
                    raise _TooFewRowsError
            connection.execute("COMMIT")
        except BaseException:
            if self._engine.is_lost(connection):
                self._pool.discard(connection)
            else:
                with suppress(*self._engine.errors):
                    connection.execute("ROLLBACK")
                self._pool.release(connection)
            raise
        self._pool.release(connection)
        return changed

    def close(self) -> None:
        self._pool.close()


def _are_storable(cells: Sequence[Cell]) -> bool:
    return all(is_storable_text(cell) for cell in cells if isinstance(cell, str))


class _TooFewRowsError(Exception):
    """A step changed fewer rows than required."""
