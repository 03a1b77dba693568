"""How a group of jobs becomes one transaction of a SQLite file."""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from msgspec.structs import astuple

from holdfast.stores.one_by_one import OneByOne
from holdfast.stores.queries import add_to_session, queries
from holdfast.stores.rows import COLUMNS, joined
from holdfast.stores.sqlite_file import explain, identity_of, moved
from holdfast.stores.writer import Append, Delete, Job, Settle

ROWS_AT_ONCE = 50

QUERIES = queries("?")
ADD_TO_SESSION = add_to_session("?", least="min", greatest="max")


class SqliteWrites:
    """Owns the one connection that writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._identity = identity_of(path)
        self._each = OneByOne(connection.execute, self._insert, queries=QUERIES, violation=sqlite3.IntegrityError)

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
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._insert(appends)
        return [partial(job.done.set_result, None) for job in appends]

    def _one_by_one(self, group: Sequence[Job]) -> list[Settle]:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            answers = [self._each.settle(job) for job in group]
        if any(isinstance(job, Delete) for job in group):
            self._empty_wal()
        return answers

    def _insert(self, appends: Sequence[Append]) -> None:
        added = joined(more for job in appends for more in job.tallies)
        self._connection.executemany(ADD_TO_SESSION, map(astuple, added))
        rows = [row for job in appends for row in job.rows]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            self._connection.execute(_insertion(len(some)), [cell for row in some for cell in astuple(row)])

    def _empty_wal(self) -> None:
        # The WAL still holds the deleted text. If a reader is in the way, a later checkpoint empties it.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()


@cache
def _insertion(rows: int) -> str:
    """Many rows in one statement: each statement lets another thread run, and then waits for its turn."""
    row = f"({', '.join('?' * len(COLUMNS))})"
    return f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES {', '.join([row] * rows)}"
