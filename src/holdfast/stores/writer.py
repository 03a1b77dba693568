"""Who writes: one thread that takes whatever is queued and commits it as one group, in order."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from holdfast.errors import StoreError
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.stores.rows import Row

GROUP_JOBS_MAX = 500
QUEUE_BYTES_MAX = 64 * 1024 * 1024

_JOB_BYTES = 512  # What a queued job takes besides its payloads, roughly.


class Append(msgspec.Struct, frozen=True):
    """`posted` are those of the events that matter to the tables."""

    rows: tuple[Row, ...]
    tallies: tuple[SessionRow, ...]
    done: Future[None]
    posted: tuple[Event, ...] = ()


class Delete(msgspec.Struct, frozen=True):
    session_id: str
    done: Future[int]


class Prune(msgspec.Struct, frozen=True):
    """Removes a session's events of all types but `kept_types`, if its last one is older than `before`."""

    session_id: str
    kept_types: tuple[str, ...]
    before: float
    done: Future[int]


class Enter(msgspec.Struct, frozen=True):
    """Enters sessions that were not, or not wholly; `afresh` empties the tables first."""

    session_ids: tuple[str, ...]
    done: Future[None]
    afresh: bool = False


Job = Append | Delete | Prune | Enter

Settle = Callable[[], None]

Commit = Callable[[Sequence[Job]], Sequence[Settle]]
"""Makes a group durable and says how to answer each job; raises StoreError when the whole group failed."""


class Writer:
    """Every job's future is answered, and not before its group is durable.

    The first group that fails is the last one: jobs behind it were queued in the belief that it would
    succeed, so writing them would leave a gap in the log.
    """

    def __init__(
        self,
        commit: Commit,
        let_go: Callable[[], None],
        *,
        group_jobs_max: int = GROUP_JOBS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._commit = commit
        self._let_go = let_go
        self._group_jobs_max = group_jobs_max
        self._queue_bytes_max = queue_bytes_max
        self._queue: deque[Job] = deque()
        self._queued_bytes = 0
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._refusal: StoreError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job, waiting while the queue is full. From then on it cannot be cancelled."""
        job.done.set_running_or_notify_cancel()
        size = weigh(job)
        with self._lock:
            if not self._takes(size):
                self._room.wait_for(lambda: self._takes(size))
            refusal = self._refusal
            if refusal is None:
                self._queue.append(job)
                self._queued_bytes += size
                self._work.notify()
        if refusal is not None:
            _refuse(job, refusal)

    def _takes(self, size: int) -> bool:
        fits = not self._queue or self._queued_bytes + size <= self._queue_bytes_max
        # A future's callback runs on the writer's own thread, which must never wait for itself.
        return fits or self._refusal is not None or self.is_current_thread()

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self, refusal: StoreError) -> None:
        """Write what is queued, then end; every later job gets the refusal."""
        with self._lock:
            self._refusal = self._refusal or refusal
            self._closing = True
            self._work.notify()
            self._room.notify_all()
        if not self.is_current_thread():
            self._thread.join()

    def _run(self) -> None:
        while group := self._take():
            try:
                answers = self._commit(group)
            except StoreError as error:
                self._fail(group, error)
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it was
                self._fail(group, StoreError(f"the store failed with {type(error).__name__}: open it again"))
            else:
                for answer in answers:
                    answer()
        self._let_go()

    def _take(self) -> Sequence[Job]:
        """The next group; empty when there is nothing left to do, ever."""
        with self._lock:
            self._work.wait_for(lambda: self._queue or self._closing)
            group = [self._queue.popleft() for _ in range(min(len(self._queue), self._group_jobs_max))]
            self._queued_bytes -= sum(map(weigh, group))
            self._room.notify_all()
        return group

    def _fail(self, group: Sequence[Job], error: StoreError) -> None:
        with self._lock:
            self._refusal = error
            failed = (*group, *self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            self._room.notify_all()
        for job in failed:
            _refuse(job, error)


def weigh(job: Job) -> int:
    """How many bytes of the queue a job takes."""
    rows = job.rows if isinstance(job, Append) else ()
    return _JOB_BYTES + sum([_JOB_BYTES + len(row.payload) for row in rows])


def _refuse(job: Job, error: StoreError) -> None:
    # Each future gets an error of its own: one that is raised in two threads would mix their tracebacks.
    refusal = StoreError(str(error))
    refusal.__cause__ = error.__cause__
    job.done.set_exception(refusal)
