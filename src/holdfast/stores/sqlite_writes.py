"""How a group of jobs becomes one transaction of a SQLite file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.stores.bookkeeping import Bookkeeper
from holdfast.stores.database import Asked
from holdfast.stores.one_by_one import OneByOne
from holdfast.stores.queries import Cell, add_to_session, queries
from holdfast.stores.rows import COLUMNS, joined
from holdfast.stores.sqlite_file import explain, identity_of, moved
from holdfast.stores.table_queries import TableQueries
from holdfast.stores.writer import Append, Delete, Job, Prune, Settle

ROWS_AT_ONCE = 50

QUERIES = queries("?")
TABLE_QUERIES = TableQueries("?")
ASKED = Asked(
    QUERIES,
    TABLE_QUERIES,
    version="SELECT user_version FROM pragma_user_version",
    size_bytes="SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
)
ADD_TO_SESSION = add_to_session("?", least="min", greatest="max")


class SqliteWrites:
    """Owns the one connection that writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path, models: Models) -> None:
        self._connection = connection
        self._path = path
        self._identity = identity_of(path)
        self._books = Bookkeeper(models, TABLE_QUERIES)
        self._desk = _Desk(connection)
        self._each = OneByOne(
            connection.execute,
            self._insert,
            queries=QUERIES,
            books=self._books,
            desk=self._desk,
            violation=sqlite3.IntegrityError,
        )
        try:
            self._bring_up_to_date()
        except sqlite3.Error as error:
            raise explain(error, path) from error

    def _bring_up_to_date(self) -> None:
        if not self._books.is_current(self._desk):
            with self._transaction():
                # Another process may have been faster.
                if not self._books.is_current(self._desk):
                    self._books.restart(self._desk)

    def commit(self, group: Sequence[Job]) -> list[Settle]:
        # SQLite would go on writing to a file that nobody can find any more.
        if identity_of(self._path) != self._identity:
            raise moved(self._path)
        appends = [job for job in group if isinstance(job, Append)]
        try:
            if len(appends) == len(group):
                # Faster by far; refused only if some event is known, and then nobody is the worse for it.
                with suppress(sqlite3.IntegrityError):
                    return self._together(appends)
            return self._one_by_one(group)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    def _together(self, appends: Sequence[Append]) -> list[Settle]:
        with self._transaction():
            self._insert(appends)
        return [partial(job.done.set_result, None) for job in appends]

    def _one_by_one(self, group: Sequence[Job]) -> list[Settle]:
        with self._transaction():
            answers = [self._each.settle(job) for job in group]
        if any(isinstance(job, Delete | Prune) for job in group):
            self._empty_wal()
        return answers

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What was entered in the block is in the tables when it is left."""
        self._books.begin()
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._books.write(self._desk)
        self._books.commit()

    def _insert(self, appends: Sequence[Append]) -> None:
        added = joined(more for job in appends for more in job.tallies)
        self._connection.executemany(ADD_TO_SESSION, [(*astuple(row), row.event_count) for row in added])
        self._books.open(self._desk, appends, added)
        rows = [row for job in appends for row in job.rows]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            self._connection.execute(_insertion(len(some)), [cell for row in some for cell in astuple(row)])
        self._books.enter(appends)

    def _empty_wal(self) -> None:
        # The WAL still holds the deleted text. If a reader is in the way, a later checkpoint empties it.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()


class _Desk:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fetch(self, query: str, parameters: Sequence[Cell] = (), /) -> list[tuple[object, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None:
        self._connection.executemany(query, rows)


@cache
def _insertion(rows: int) -> str:
    """Many rows in one statement: each statement lets another thread run, and then waits for its turn."""
    row = f"({', '.join('?' * len(COLUMNS))})"
    return f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES {', '.join([row] * rows)}"
