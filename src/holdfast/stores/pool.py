"""A connection pool for readers: lends an idle connection or a new one, and keeps only a few idle ones."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar

IDLE_MAX = 4  # Open connections that nobody uses still cost a file handle, or a PostgreSQL server process.


class _Closes(Protocol):
    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=_Closes)


class ConnectionPool(Generic[Connection]):
    """Any number of threads may borrow; at most `IDLE_MAX` connections stay open when none is borrowed."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._idle_max = IDLE_MAX

    def borrow(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def release(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < self._idle_max:
                self._idle.append(connection)
                return
        connection.close()

    def close_idle(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections, and from now on every connection that is given back."""
        with self._lock:
            self._idle_max = 0
        self.close_idle()
