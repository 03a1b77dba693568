"""Reads from a SQLite file on pooled connections, so that no reader waits for the writer."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.stores.pool import Pool
from holdfast.stores.queries import Cell
from holdfast.stores.rows import is_text
from holdfast.stores.sqlite_file import explain


class SqliteReads:
    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._pool = Pool(connect)
        self._path = path

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if not all(is_text(value) for value in parameters if isinstance(value, str)):
            return []
        try:
            connection = self._pool.borrow()
            try:
                rows: list[tuple[object, ...]] = connection.execute(query, parameters).fetchall()
            finally:
                self._pool.give_back(connection)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        return rows

    def close(self) -> None:
        self._pool.close()
