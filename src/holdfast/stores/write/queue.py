"""Group commit: the writer thread commits all queued jobs at once; changes beside the log share commits too."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock

import msgspec

from holdfast.errors import StoreError, UnstorableEventError
from holdfast.events.log import Event, SessionRow
from holdfast.stores.sql.events import Cell, EventRow

GROUP_JOBS_MAX = 500  # Bounds how long one transaction takes.

# Bounds memory when appends come faster than the disk can take them: `append` then blocks.
QUEUE_BYTES_MAX = 64 * 1024 * 1024
_JOB_BYTES = 512  # Approximate memory of a queued job besides its payloads.
SettleJob = Callable[[], None]


class AppendJob(msgspec.Struct, frozen=True):
    """`ledger_events` are the events that change the roll-up tables, `conversation_keys` those of each session.

    With `at_head`, the events continue the session wherever it is by then.
    """

    rows: tuple[EventRow, ...]
    session_tallies: tuple[SessionRow, ...]
    done: Future[None]
    ledger_events: tuple[Event, ...] = ()
    conversation_keys: tuple[tuple[str, float, str], ...] = ()
    at_head: bool = False


class DeleteJob(msgspec.Struct, frozen=True):
    session_id: str
    done: Future[int]


class PruneJob(msgspec.Struct, frozen=True):
    """Deletes a session's events of all types but `retained_types` if its last event is older than `before`."""

    session_id: str
    retained_types: tuple[str, ...]
    before: float
    done: Future[int]


class RollUpJob(msgspec.Struct, frozen=True):
    """Processes sessions that are not completely in the roll-up tables; `clear_first` empties the tables first."""

    session_ids: tuple[str, ...]
    done: Future[None]
    clear_first: bool = False


WriteJob = AppendJob | DeleteJob | PruneJob | RollUpJob

# Makes a group durable and returns a callback per job that settles it; raises StoreError if the whole group failed.
CommitGroup = Callable[[Sequence[WriteJob]], Sequence[SettleJob]]


class WriterThread:
    """Every job's future is settled, and not before its group is durable.

    The first group that fails is the last one: later jobs were queued on the assumption that it would succeed, so
    writing them would leave a gap in the log. A job that is refused for what it holds is rejected alone; `commit`
    refuses those that continue it.
    """

    def __init__(
        self,
        commit: CommitGroup,
        release: Callable[[], None],
        *,
        group_jobs_max: int = GROUP_JOBS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._commit = commit
        self._release = release
        self._group_jobs_max = group_jobs_max
        self._queue_bytes_max = queue_bytes_max
        self._queue: deque[tuple[WriteJob, int]] = deque()
        self._queued_bytes = 0
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._refusal: StoreError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: WriteJob) -> None:
        """Queues a job, waiting while the queue is full. It cannot be cancelled afterwards."""
        job.done.set_running_or_notify_cancel()
        size = estimate_job_bytes(job)
        with self._lock:
            if not self._accepts(size):
                self._room.wait_for(lambda: self._accepts(size))
            refusal = self._refusal
            if refusal is None:
                self._queue.append((job, size))
                self._queued_bytes += size
                self._work.notify()
        if refusal is not None:
            reject_job(job, refusal)

    def _accepts(self, size: int) -> bool:
        fits = not self._queue or self._queued_bytes + size <= self._queue_bytes_max
        # Callbacks of futures run on the writer thread, which must never wait for itself.
        return fits or self._refusal is not None or self.is_current_thread()

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self, refusal: StoreError) -> None:
        """Writes what is queued, then stops the thread; every later job is rejected with `refusal`."""
        with self._lock:
            self._refusal = self._refusal or refusal
            self._closing = True
            self._work.notify()
            self._room.notify_all()
        if not self.is_current_thread():
            self._thread.join()

    def _run(self) -> None:
        while group := self._next_group():
            self._commit_group(group)
        self._release()

    def _commit_group(self, group: Sequence[WriteJob]) -> StoreError | None:
        """Settles all jobs; returns the error that ends the writer, if there was one."""
        try:
            settles = self._commit(group)
        except UnstorableEventError as error:
            return self._commit_each(group, error)
        except StoreError as error:
            return self._fail(group, error)
        except Exception as error:  # noqa: BLE001 - the waiting caller must learn of any failure
            return self._fail(group, wrap_unexpected(error))
        for settle in settles:
            settle()
        return None

    def _commit_each(self, group: Sequence[WriteJob], refusal: StoreError) -> StoreError | None:
        if len(group) == 1:
            reject_job(group[0], refusal)
            return None
        for position, job in enumerate(group, 1):
            error = self._commit_group([job])
            if error is not None:
                return self._fail(group[position:], error)
        return None

    def _next_group(self) -> Sequence[WriteJob]:
        """The next group; empty when the writer is closed and the queue is empty."""
        with self._lock:
            self._work.wait_for(lambda: self._queue or self._closing)
            group = [self._queue.popleft() for _ in range(min(len(self._queue), self._group_jobs_max))]
            self._queued_bytes -= sum(size for _, size in group)
            self._room.notify_all()
        return [job for job, _ in group]

    def _fail(self, group: Sequence[WriteJob], error: StoreError) -> StoreError:
        with self._lock:
            self._refusal = error
            failed = (*group, *(job for job, _ in self._queue))
            self._queue.clear()
            self._queued_bytes = 0
            self._room.notify_all()
        for job in failed:
            reject_job(job, error)
        return error


def estimate_job_bytes(job: WriteJob) -> int:
    """The bytes that a job counts for in the queue limit."""
    rows = job.rows if isinstance(job, AppendJob) else ()
    return _JOB_BYTES + sum([_JOB_BYTES + len(row.payload) for row in rows])


def wrap_unexpected(error: Exception) -> StoreError:
    """What a caller who waits learns of an error that is not the database's."""
    failure = StoreError(f"the store failed with {type(error).__name__}: open it again")
    failure.__cause__ = error
    return failure


def reject_job(job: WriteJob, error: StoreError) -> None:
    job.done.set_exception(_copy_error(error))


def _copy_error(error: StoreError) -> StoreError:
    """Each future gets its own exception: one instance raised in two threads would mix their tracebacks."""
    copy = UnstorableEventError(str(error)) if isinstance(error, UnstorableEventError) else StoreError(str(error))
    copy.__cause__ = error.__cause__
    return copy


class RefusingWriter:
    """In the place of everything that writes to a store that is open for reading only."""

    def __init__(self, name: str) -> None:
        self._message = f"the store {name} is open for reading only: open it for writing to change it"

    def submit(self, job: WriteJob) -> None:
        reject_job(job, StoreError(self._message))

    def is_current_thread(self) -> bool:
        return False

    def run_statement(self, statement: str, parameters: Sequence[Cell]) -> int:
        raise StoreError(self._message)

    def run_steps(
        self, steps: Sequence["SqlStep"], *, synced: bool = True, lock_seconds_max: float | None = None
    ) -> bool:
        raise StoreError(self._message)

    def close(self, refusal: StoreError | None = None) -> None:
        """Has nothing to close."""


class SqlStep(msgspec.Struct, frozen=True):
    """One statement, and the minimum number of rows it must change for the transaction to succeed."""

    statement: str
    cells: tuple[Cell, ...]
    rows_min: int = 0


class _PendingStep(msgspec.Struct, frozen=True):
    step: SqlStep
    done: Future[bool]


class GroupCommit:
    """A writer waits at most for the commit in progress and the next one."""

    def __init__(self, change_all: Callable[[Sequence[SqlStep]], bool]) -> None:
        self._change_all = change_all
        self._lock = Lock()
        self._commit_lock = Lock()
        self._queue: list[_PendingStep] = []

    def commit_step(self, step: SqlStep) -> bool:
        """Durable once this returns; False if a constraint rejects the row. Raises StoreError."""
        pending = _PendingStep(step, Future())
        with self._lock:
            self._queue.append(pending)
        with self._commit_lock:
            if not pending.done.done():
                with self._lock:
                    group, self._queue = self._queue, []
                self._commit(group)
        return pending.done.result()

    def _commit(self, group: Sequence[_PendingStep]) -> None:
        try:
            if self._change_all([pending.step for pending in group]):
                for pending in group:
                    pending.done.set_result(True)
                return
            # One step was rejected; run them one by one so that it does not affect the others.
            for pending in group:
                pending.done.set_result(len(group) > 1 and self._change_all([pending.step]))
        except StoreError as error:
            for pending in group:
                if not pending.done.done():
                    pending.done.set_exception(_copy_error(error))
