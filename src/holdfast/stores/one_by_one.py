"""How the jobs of a group are settled one after the other, so that a refused append harms no other."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.errors import StoreError
from holdfast.stores.bookkeeping import Bookkeeper, Desk
from holdfast.stores.queries import Queries
from holdfast.stores.rows import already_kept, continued_elsewhere
from holdfast.stores.writer import Append, Delete, Enter, Job, Prune, Settle


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> object: ...


class Execute(Protocol):
    def __call__(self, statement: str, parameters: Sequence[str | None] = ..., /) -> Cursor: ...


class OneByOne:
    """Works inside the caller's transaction; `violation` is what the engine raises for a row that may not be."""

    def __init__(
        self,
        execute: Execute,
        insert: Callable[[Sequence[Append]], None],
        *,
        queries: Queries,
        books: Bookkeeper,
        desk: Desk,
        violation: type[Exception],
    ) -> None:
        self._execute = execute
        self._insert = insert
        self._queries = queries
        self._books = books
        self._desk = desk
        self._violation = violation

    def settle(self, job: Job) -> Settle:
        match job:
            case Append():
                return self._append(job)
            case Delete():
                return self._delete(job)
            case Prune():
                return self._prune(job)
            case Enter():
                return self._enter(job)

    def _append(self, job: Append) -> Settle:
        # What is entered of events before this append stays, whatever becomes of it.
        self._books.catch_up(self._desk, dict.fromkeys(event.session_id for event in job.posted))
        self._execute("SAVEPOINT append")
        try:
            self._insert([job])
        except self._violation:
            self._execute("ROLLBACK TO append")
            refusal = self._refusal(job)
            if refusal is None:
                raise
            answer: Settle = partial(job.done.set_exception, refusal)
        else:
            answer = partial(job.done.set_result, None)
        self._execute("RELEASE append")
        return answer

    def _refusal(self, job: Append) -> StoreError | None:
        """Why the events of this append cannot stand beside those that are kept."""
        for row in job.rows:
            if self._execute(self._queries.known, (row.id,)).fetchone():
                return already_kept(row.id)
            if self._execute(self._queries.continued, (row.session_id, row.parent_event_id)).fetchone():
                return continued_elsewhere(row.session_id)
        return None

    def _delete(self, job: Delete) -> Settle:
        self._books.take_out(self._desk, job.session_id)
        gone = self._execute(self._queries.forget_events, (job.session_id,)).rowcount
        self._execute(self._queries.forget_session, (job.session_id,))
        return partial(job.done.set_result, gone)

    def _prune(self, job: Prune) -> Settle:
        # Since somebody looked the session may have gone on.
        if not self._desk.fetch(self._queries.is_old, (job.session_id, job.before)):
            return partial(job.done.set_result, 0)
        self._books.take_out(self._desk, job.session_id)
        statement = self._queries.prune.format(kept=", ".join([self._queries.mark] * len(job.kept_types)))
        gone = self._execute(statement, (job.session_id, *job.kept_types)).rowcount
        if self._desk.fetch(self._queries.any_event, (job.session_id,)):
            self._execute(self._queries.recount, (job.session_id,))
            self._books.catch_up(self._desk, (job.session_id,))
        else:
            self._execute(self._queries.forget_session, (job.session_id,))
        return partial(job.done.set_result, gone)

    def _enter(self, job: Enter) -> Settle:
        if job.afresh:
            self._books.restart(self._desk)
        self._books.catch_up(self._desk, job.session_ids)
        return partial(job.done.set_result, None)
