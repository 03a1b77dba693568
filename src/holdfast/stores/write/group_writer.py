"""Commits a group of jobs in one transaction, the same for all engines; a refused append affects no other job."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

from msgspec.structs import astuple, replace

from holdfast.catalog.lookup import Models
from holdfast.errors import StoreError, UnstorableEventError
from holdfast.events.records import ledger_key, snapshot_key
from holdfast.stores.sql.analytics_queries import insert_rows
from holdfast.stores.sql.connection import Cursor, Engine, SqlConnection
from holdfast.stores.sql.dialect import repeat_params
from holdfast.stores.sql.events import (
    ADD_TO_SESSION,
    RECOUNT,
    Cell,
    EventRow,
    continued_elsewhere_error,
    duplicate_event_error,
    merge_tallies,
)
from holdfast.stores.sql.rollups import RollUpWriter
from holdfast.stores.write.queue import AppendJob, DeleteJob, PruneJob, RollUpJob, SettleJob, WriteJob

_DELETE_SESSION = "DELETE FROM holdfast.sessions WHERE id = ?"


_DELETE_KEYS = "DELETE FROM holdfast.conversation_keys WHERE session_id = ?"
_DELETE_SHARED = "DELETE FROM holdfast.shared_values WHERE key = ?"
_REQUEST_SINCE = """
SELECT 1 FROM holdfast.events WHERE session_id = ? AND type = 'request.prepared'
    AND seq > (SELECT seq FROM holdfast.events WHERE session_id = ? AND id = ?) LIMIT 1"""
_CONTINUATION = "SELECT 1 FROM holdfast.events WHERE session_id = ? AND parent_event_id = ? LIMIT 1"


class _ChainMovedError(Exception):
    """Another process has continued the session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id


class GroupWriter(ABC):
    """Owns the one connection that writes; an engine adds how it begins, locks, inserts and commits."""

    def __init__(self, engine: Engine, connection: SqlConnection, models: Models) -> None:
        self._engine = engine
        self._connection = connection
        self._rollups = RollUpWriter(models)
        self._is_fast_path = False
        """Whether a conflict rolls everything back, and the group is then written job by job."""
        self._refused_ids: set[str] = set()
        """Events of refused appends. What was queued to continue them must not be on the log without them."""

    @abstractmethod
    def commit(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        """Makes a group durable and returns a callback per job that settles it; raises StoreError."""

    def _explain_failure(self, group: Sequence[WriteJob], error: Exception) -> StoreError:
        if not isinstance(error, self._engine.refusals):
            return self._engine.explain(error)
        if len(group) == 1 and isinstance(group[0], AppendJob):
            self._refused_ids.update(row.id for row in group[0].rows)
        if isinstance(error, self._engine.errors):
            return UnstorableEventError(str(self._engine.explain(error)))
        return UnstorableEventError(f"{self._engine.name} cannot store an event ({type(error).__name__})")

    @abstractmethod
    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None:
        """Runs a statement once for each row of parameters."""

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Sequence[Cell]], /) -> None:
        """Adds rows; one that is already there is left as it is, or fails the fast path."""
        self.write(insert_rows(table, columns), rows)

    @abstractmethod
    def _insert_events(self, rows: Sequence[EventRow]) -> None: ...

    @abstractmethod
    def _begin(self) -> None: ...

    def _commit(self, settles: Sequence[SettleJob]) -> None:
        self._connection.execute("COMMIT")

    @abstractmethod
    def _lock(self, group: Sequence[WriteJob]) -> None:
        """Locks what the jobs change until the transaction ends."""

    def fetch(self, query: str, parameters: Sequence[Cell] = (), /) -> list[tuple[object, ...]]:
        return self._engine.dialect.decode_rows(self._execute(query, parameters).fetchall())

    def _execute(self, query: str, parameters: Sequence[Cell] = (), /) -> Cursor:
        dialect = self._engine.dialect
        return self._connection.execute(dialect.translate(query), dialect.encode_cells(parameters))

    def _reset_outdated_tables(self) -> None:
        """Empties roll-up tables that were filled by the rules of another version."""
        if not self._rollups.is_current(self):
            self.commit([RollUpJob((), Future(), clear_first=True)])

    def _commit_group(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        appends = [job for job in group if isinstance(job, AppendJob)]
        if len(appends) == len(group) and not any(map(self._find_refused_parent, appends)):
            # Much faster. It fails only if an event is already known or continued, and the slow path finds out which.
            self._is_fast_path = True
            try:
                with suppress(self._engine.violation, _ChainMovedError):
                    with self._transaction() as settles:
                        self._insert(appends)
                        settles += [partial(job.done.set_result, None) for job in appends]
                    return settles
            finally:
                self._is_fast_path = False
        with self._transaction() as settles:
            self._lock(group)
            settles += [self._run_job(job) for job in group]
        return settles

    @contextmanager
    def _transaction(self) -> Iterator[list[SettleJob]]:
        """Yields a list for the callbacks that settle the jobs; they are valid once the block ends without an error.

        The roll-ups computed inside the block are written when it ends.
        """
        settles: list[SettleJob] = []
        self._begin()
        self._rollups.begin()
        try:
            yield settles
            self._rollups.write(self)
            self._commit(settles)
        except BaseException:
            with suppress(*self._engine.errors):
                self._connection.execute("ROLLBACK")
            raise
        self._rollups.commit()

    def _insert(self, appends: Sequence[AppendJob]) -> None:
        # Always in the same order, so that two processes cannot deadlock.
        tallies = merge_tallies(tally for job in appends for tally in job.session_tallies)
        session_rows = sorted(tallies, key=lambda row: row.id)
        last_ids = {row.session_id: row.id for job in appends for row in job.rows}
        self.write(
            ADD_TO_SESSION,
            [(*astuple(row), row.event_count, row.event_count, last_ids[row.id], None) for row in session_rows],
        )
        heads = self._rollups.load_sessions(self, appends, session_rows)
        continued: set[tuple[str, str | None]] = set()
        self._insert_events([row for job in appends for row in self._link(job, heads, continued)])
        if self._refused_ids:
            # One that was refused may come again with another parent.
            self._refused_ids.difference_update(row.id for job in appends for row in job.rows)
        keys = [key for job in appends for key in job.conversation_keys]
        if keys:
            self.insert("conversation_keys", ("key", "at", "session_id"), sorted(set(keys)))
        self._rollups.add_appends(appends)

    def _link(
        self, job: AppendJob, heads: dict[str, object], continued: set[tuple[str, str | None]]
    ) -> Iterator[EventRow]:
        """The rows of an append, continuing the chains of their sessions; `heads` are moved to the last of them.

        The row of the session is locked, so its head is compared and set at once: that alone refuses a fork where the
        events are partitioned by time. `continued` are the events that earlier rows continue.
        """
        for row in job.rows:
            session_id, parent = row.session_id, row.parent_event_id
            head = heads.get(session_id)
            if isinstance(head, str) and parent not in (None, head):
                assert parent is not None
                if job.at_head:
                    if self._has_other_request(job, session_id, parent):
                        raise _ChainMovedError(session_id)
                    row = replace(row, parent_event_id=head)
                elif (session_id, parent) in continued or self.fetch(_CONTINUATION, (session_id, parent)):
                    raise _ChainMovedError(session_id)
            continued.add((session_id, row.parent_event_id))
            heads[session_id] = row.id
            yield row

    def _has_other_request(self, job: AppendJob, session_id: str, parent_id: str) -> bool:
        """Whether a request follows the event that this append was to continue, and the append describes another one.

        A request is recorded by what it adds to the one before it.
        """
        describes_request = any(row.type == "request.prepared" for row in job.rows if row.session_id == session_id)
        return describes_request and bool(self.fetch(_REQUEST_SINCE, (session_id, session_id, parent_id)))

    def _run_job(self, job: WriteJob) -> SettleJob:
        match job:
            case AppendJob():
                return self._append(job)
            case DeleteJob():
                return self._delete(job)
            case PruneJob():
                return self._prune(job)
            case RollUpJob():
                return self._roll_up(job)

    def _append(self, job: AppendJob) -> SettleJob:
        # Before the savepoint: roll-ups of earlier events must stay even if this append is rolled back.
        self._rollups.catch_up(self, dict.fromkeys(event.session_id for event in job.ledger_events))
        orphan = self._find_refused_parent(job)
        if orphan is not None:
            return self._refuse(job, continued_elsewhere_error(orphan.session_id))
        self._execute("SAVEPOINT append")
        try:
            self._insert([job])
        except (self._engine.violation, _ChainMovedError) as error:
            self._execute("ROLLBACK TO append")
            moved = error.session_id if isinstance(error, _ChainMovedError) else None
            refusal = self._find_refusal(job) or (None if moved is None else continued_elsewhere_error(moved))
            if refusal is None:
                raise
            settle = self._refuse(job, refusal)
        else:
            settle = partial(job.done.set_result, None)
        self._execute("RELEASE append")
        return settle

    def _find_refused_parent(self, job: AppendJob) -> EventRow | None:
        """The first event that continues a refused one."""
        if not self._refused_ids:
            return None
        missing = self._refused_ids.difference(row.id for row in job.rows)
        return next((row for row in job.rows if row.parent_event_id in missing), None)

    def _refuse(self, job: AppendJob, refusal: StoreError) -> SettleJob:
        self._refused_ids.update(row.id for row in job.rows)
        return partial(job.done.set_exception, refusal)

    def _find_refusal(self, job: AppendJob) -> StoreError | None:
        """Why the events of this append conflict with those on the log; None if they do not."""
        for row in job.rows:
            if self.fetch("SELECT 1 FROM holdfast.events WHERE id = ?", (row.id,)):
                return duplicate_event_error(row.id)
            if self.fetch(_CONTINUATION, (row.session_id, row.parent_event_id)):
                return continued_elsewhere_error(row.session_id)
        return None

    def _delete(self, job: DeleteJob) -> SettleJob:
        self._rollups.remove_session(self, job.session_id)
        deleted = self._execute("DELETE FROM holdfast.events WHERE session_id = ?", (job.session_id,)).rowcount
        self._execute(_DELETE_SESSION, (job.session_id,))
        self._forget(job.session_id)
        return partial(job.done.set_result, deleted)

    def _prune(self, job: PruneJob) -> SettleJob:
        # The session may have continued since it was selected for pruning.
        old_session = "SELECT 1 FROM holdfast.sessions WHERE id = ? AND last_event_at < ?"
        if not self.fetch(old_session, (job.session_id, job.before)):
            return partial(job.done.set_result, 0)
        self._rollups.remove_session(self, job.session_id)
        is_other = f"type NOT IN ({repeat_params(len(job.retained_types))})"
        prune = f"DELETE FROM holdfast.events WHERE session_id = ? AND {is_other}"
        deleted = self._execute(prune, (job.session_id, *job.retained_types)).rowcount
        if self.fetch("SELECT 1 FROM holdfast.events WHERE session_id = ? LIMIT 1", (job.session_id,)):
            self._execute(RECOUNT, (job.session_id,))
            self._rollups.catch_up(self, (job.session_id,))
        else:
            self._execute(_DELETE_SESSION, (job.session_id,))
        self._forget(job.session_id)
        return partial(job.done.set_result, deleted)

    def _forget(self, session_id: str) -> None:
        # Without its requests, a session cannot be continued. Its folded state has their content.
        self._execute(_DELETE_KEYS, (session_id,))
        for key in (ledger_key(session_id), snapshot_key(session_id)):
            self._execute(_DELETE_SHARED, (key,))

    def _roll_up(self, job: RollUpJob) -> SettleJob:
        if job.clear_first:
            self._rollups.reset_tables(self)
        self._rollups.catch_up(self, job.session_ids)
        return partial(job.done.set_result, None)

    def close(self) -> None:
        with suppress(*self._engine.errors):
            self._connection.close()
