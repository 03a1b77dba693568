"""How a group of jobs becomes one transaction, in which a refused append harms no other."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from msgspec.structs import astuple

from holdfast.errors import StoreError
from holdfast.events.log import SessionRow
from holdfast.stores.rows import COLUMNS, already_kept, continued_elsewhere, merge
from holdfast.stores.sqlite_file import explain, identity_of, moved
from holdfast.stores.writer import Append, Delete, Job, Settle

ROWS_AT_ONCE = 50

ADD_TO_SESSION = """
INSERT INTO sessions (id, name, model, started_at, last_event_at, event_count, parent_session_id)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    name = coalesce(excluded.name, name),
    model = coalesce(nullif(excluded.model, ''), model),
    started_at = min(started_at, excluded.started_at),
    last_event_at = max(last_event_at, excluded.last_event_at),
    event_count = event_count + excluded.event_count,
    parent_session_id = coalesce(excluded.parent_session_id, parent_session_id)
"""


class SqliteWrites:
    """Owns the one connection that writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._identity = identity_of(path)

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
            answers = [self._append(job) if isinstance(job, Append) else self._delete(job) for job in group]
        if any(isinstance(job, Delete) for job in group):
            self._empty_wal()
        return answers

    def _append(self, job: Append) -> Settle:
        self._connection.execute("SAVEPOINT append")
        try:
            self._insert([job])
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO append")
            refusal = self._refusal(job)
            if refusal is None:
                raise
            answer: Settle = partial(job.done.set_exception, refusal)
        else:
            answer = partial(job.done.set_result, None)
        self._connection.execute("RELEASE append")
        return answer

    def _insert(self, appends: Iterable[Append]) -> None:
        added: dict[str, SessionRow] = {}
        for job in appends:
            for more in job.tallies:
                before = added.get(more.id)
                added[more.id] = merge(before, more) if before else more
        self._connection.executemany(ADD_TO_SESSION, map(astuple, added.values()))
        rows = [row for job in appends for row in job.rows]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            self._connection.execute(_insertion(len(some)), [cell for row in some for cell in astuple(row)])

    def _refusal(self, job: Append) -> StoreError | None:
        """Why the events of this append cannot stand beside those that are kept."""
        known = "SELECT 1 FROM events WHERE id = ?"
        continued = "SELECT 1 FROM events WHERE session_id = ? AND parent_event_id = ?"
        for row in job.rows:
            if self._connection.execute(known, (row.id,)).fetchone():
                return already_kept(row.id)
            if self._connection.execute(continued, (row.session_id, row.parent_event_id)).fetchone():
                return continued_elsewhere(row.session_id)
        return None

    def _delete(self, job: Delete) -> Settle:
        gone = self._connection.execute("DELETE FROM events WHERE session_id = ?", (job.session_id,)).rowcount
        self._connection.execute("DELETE FROM sessions WHERE id = ?", (job.session_id,))
        return partial(job.done.set_result, gone)

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
