"""Runs the jobs of a group one by one in a shared transaction, so that a refused append affects no other."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.errors import StoreError
from holdfast.stores.sql.events import LogQueries, continued_elsewhere_error, duplicate_event_error
from holdfast.stores.sql.rollups import QueryPort, RollUpWriter
from holdfast.stores.write.queue import AppendJob, DeleteJob, PruneJob, RollUpJob, SettleJob, WriteJob


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> object: ...


class Execute(Protocol):
    def __call__(self, statement: str, parameters: Sequence[str | None] = ..., /) -> Cursor: ...


class JobBatch:
    """Works inside the caller's transaction; `violation` is the engine's exception for a violated constraint."""

    def __init__(
        self,
        execute: Execute,
        insert: Callable[[Sequence[AppendJob]], None],
        *,
        queries: LogQueries,
        rollups: RollUpWriter,
        port: QueryPort,
        violation: type[Exception],
    ) -> None:
        self._execute = execute
        self._insert = insert
        self._queries = queries
        self._rollups = rollups
        self._port = port
        self._violation = violation

    def run_job(self, job: WriteJob) -> SettleJob:
        match job:
            case AppendJob():
                return self._append(job)
            case DeleteJob():
                return self._delete(job)
            case PruneJob():
                return self._prune(job)
            case RollUpJob():
                return self._enter(job)

    def _append(self, job: AppendJob) -> SettleJob:
        # Before the savepoint: roll-ups of earlier events must stay even if this append is rolled back.
        self._rollups.catch_up(self._port, dict.fromkeys(event.session_id for event in job.ledger_events))
        self._execute("SAVEPOINT append")
        try:
            self._insert([job])
        except self._violation:
            self._execute("ROLLBACK TO append")
            refusal = self._find_refusal(job)
            if refusal is None:
                raise
            settle: SettleJob = partial(job.done.set_exception, refusal)
        else:
            settle = partial(job.done.set_result, None)
        self._execute("RELEASE append")
        return settle

    def _find_refusal(self, job: AppendJob) -> StoreError | None:
        """Why the events of this append conflict with those on the log; None if they do not."""
        for row in job.rows:
            if self._execute(self._queries.event_exists, (row.id,)).fetchone():
                return duplicate_event_error(row.id)
            if self._execute(self._queries.continuation_exists, (row.session_id, row.parent_event_id)).fetchone():
                return continued_elsewhere_error(row.session_id)
        return None

    def _delete(self, job: DeleteJob) -> SettleJob:
        self._rollups.remove_session(self._port, job.session_id)
        deleted = self._execute(self._queries.delete_events, (job.session_id,)).rowcount
        self._execute(self._queries.delete_session, (job.session_id,))
        return partial(job.done.set_result, deleted)

    def _prune(self, job: PruneJob) -> SettleJob:
        # The session may have continued since it was selected for pruning.
        if not self._port.fetch(self._queries.is_old, (job.session_id, job.before)):
            return partial(job.done.set_result, 0)
        self._rollups.remove_session(self._port, job.session_id)
        statement = self._queries.prune.format(retained=", ".join([self._queries.param] * len(job.retained_types)))
        deleted = self._execute(statement, (job.session_id, *job.retained_types)).rowcount
        if self._port.fetch(self._queries.any_event, (job.session_id,)):
            self._execute(self._queries.recount, (job.session_id,))
            self._rollups.catch_up(self._port, (job.session_id,))
        else:
            self._execute(self._queries.delete_session, (job.session_id,))
        return partial(job.done.set_result, deleted)

    def _enter(self, job: RollUpJob) -> SettleJob:
        if job.clear_first:
            self._rollups.reset_tables(self._port)
        self._rollups.catch_up(self._port, job.session_ids)
        return partial(job.done.set_result, None)
