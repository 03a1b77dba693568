"""Transactions beside the log on a PostgreSQL database, on connections of their own."""

from collections.abc import Callable, Sequence

import psycopg

from holdfast.stores.pool import Pool
from holdfast.stores.postgres_address import explain
from holdfast.stores.postgres_server import Connection
from holdfast.stores.postgres_text import escaped
from holdfast.stores.queries import Cell
from holdfast.stores.rows import is_text
from holdfast.stores.steps import Step, TooFewRowsError


class PostgresChanges:
    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        self._connect = connect
        self._name = name
        self._pool = Pool(connect)

    def change(self, statement: str, parameters: Sequence[Cell]) -> int:
        if not all(is_text(value) for value in parameters if isinstance(value, str)):
            return 0
        try:
            with self._connect() as connection:
                return connection.execute(statement, [escaped(value) for value in parameters]).rowcount
        except psycopg.Error as error:
            raise explain(error, self._name) from error

    def change_all(self, steps: Sequence[Step], *, synced: bool = True) -> bool:
        if not all(is_text(cell) for step in steps for cell in step.cells if isinstance(cell, str)):
            return False
        try:
            connection = self._borrow_live()
            try:
                with connection.transaction():
                    if not synced:
                        connection.execute("SET LOCAL synchronous_commit = off")
                    for step in steps:
                        cells = [escaped(cell) for cell in step.cells]
                        if connection.execute(step.statement, cells).rowcount < step.rows_min:
                            raise TooFewRowsError
            finally:
                if not connection.closed:
                    self._pool.give_back(connection)
        except (psycopg.errors.IntegrityError, TooFewRowsError):
            return False
        except psycopg.Error as error:
            raise explain(error, self._name) from error
        return True

    def _borrow_live(self) -> Connection:
        """A connection that responds: a transaction must not be retried after it has begun."""
        connection = self._pool.borrow()
        try:
            connection.execute("SELECT 1")
        except psycopg.OperationalError:
            # A restarted server has closed all pooled connections.
            connection.close()
            self._pool.empty()
            return self._connect()
        return connection

    def close(self) -> None:
        self._pool.close()
