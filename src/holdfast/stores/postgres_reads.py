"""Reads from a PostgreSQL database on pooled connections; reconnects once if the server closed one."""

from collections.abc import Callable, Sequence

import psycopg

from holdfast.stores.pool import Pool
from holdfast.stores.postgres_address import explain
from holdfast.stores.postgres_server import Connection
from holdfast.stores.postgres_text import escaped, restored
from holdfast.stores.queries import Cell
from holdfast.stores.rows import is_text


class PostgresReads:
    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        self._pool = Pool(connect)
        self._name = name

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if not all(is_text(value) for value in parameters if isinstance(value, str)):
            return []
        cells = [escaped(value) for value in parameters]
        try:
            try:
                rows = self._query(query, cells)
            except _ConnectionLostError:
                rows = self._query(query, cells)
        except psycopg.Error as error:
            raise explain(error, self._name) from error
        return [tuple(map(restored, row)) for row in rows]

    def _query(self, query: str, cells: Sequence[object]) -> list[tuple[object, ...]]:
        connection = self._pool.borrow()
        try:
            rows = connection.execute(query, cells).fetchall()
        except psycopg.Error as error:
            is_lost = connection.closed
            connection.close()
            if not is_lost:
                raise
            # A restarted server has closed all pooled connections.
            self._pool.empty()
            raise _ConnectionLostError from error
        self._pool.give_back(connection)
        return rows

    def close(self) -> None:
        self._pool.close()


class _ConnectionLostError(psycopg.OperationalError):
    """The connection was closed before the result arrived."""
