"""Who reads: connections of their own, lent out a query at a time, so that no reader waits for the writer."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from holdfast.stores.rows import is_text
from holdfast.stores.sqlite_file import explain

IDLE_MAX = 4

Cell = str | int | float | None


class SqliteReads:
    """Any number of threads may ask; at most `IDLE_MAX` connections stay open when none does."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._connect = connect
        self._path = path
        self._lock = Lock()
        self._idle: list[sqlite3.Connection] = []
        self._idle_max = IDLE_MAX

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        """All rows of a query; none if a parameter is text that no database can hold."""
        if not all(is_text(value) for value in parameters if isinstance(value, str)):
            return []
        try:
            connection = self._borrow()
            try:
                rows: list[tuple[object, ...]] = connection.execute(query, parameters).fetchall()
            finally:
                self._give_back(connection)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        return rows

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if len(self._idle) < self._idle_max:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._idle_max = 0
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
