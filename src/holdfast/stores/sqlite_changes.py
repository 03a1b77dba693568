"""Transactions beside the log on a SQLite file, on connections of their own."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from holdfast.stores.pool import Pool
from holdfast.stores.queries import Cell
from holdfast.stores.rows import is_text
from holdfast.stores.sqlite_file import explain, identity_of
from holdfast.stores.steps import Step, TooFewRowsError


class SqliteChanges:
    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._connect = connect
        self._path = path
        self._identity = identity_of(path)
        self._pool = Pool(connect)

    def change(self, statement: str, parameters: Sequence[Cell]) -> int:
        if not all(is_text(value) for value in parameters if isinstance(value, str)):
            return 0
        try:
            with closing(self._connect()) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                return connection.execute(statement, parameters).rowcount
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    def change_all(self, steps: Sequence[Step], *, synced: bool = True) -> bool:
        if not all(is_text(cell) for step in steps for cell in step.cells if isinstance(cell, str)):
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
                self._pool.give_back(connection)
        except (sqlite3.IntegrityError, TooFewRowsError):
            return False
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        return True

    def _borrow_current(self) -> sqlite3.Connection:
        """A connection to the file that is at the path now; it may have been replaced."""
        identity = identity_of(self._path)
        if identity != self._identity:
            self._pool.empty()
            self._identity = identity
        return self._pool.borrow()

    def close(self) -> None:
        self._pool.close()
