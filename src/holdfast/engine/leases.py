"""Work that one of several processes on a store does alone: it holds a lease, and another takes over when it dies.

A lease ends by the clock of the store, so a process that was killed blocks the others for `seconds` at most.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec

from holdfast.errors import HoldfastError
from holdfast.events.records import Lease, SharedWorkStore

logger = logging.getLogger(__name__)

JOB_PREFIX = "job "
JOB_LEASE_SECONDS = 30.0
"""After how long the job of a process that died is started again by another; its owner renews three times as often."""

DONE = "done"


class ProcessLeases:
    """The leases of one process. Nothing here raises: without the store, no lease is held. Thread-safe."""

    def __init__(self, work: SharedWorkStore, owner: str) -> None:
        """`owner` is unique for the process, such as a new ULID."""
        self.owner = owner
        self._work = work
        self._threads = ThreadPoolExecutor(1, "holdfast-leases")

    def take(self, name: str, *, seconds: float, value: str = "") -> bool:
        """Takes or renews a lease; False if another process has it, or if the store does not answer."""
        try:
            return self._work.take_lease(name, self.owner, seconds=seconds, value=value)
        except HoldfastError as error:
            logger.info("no lease is taken: %s", type(error).__name__)
            return False

    def take_soon(self, name: str, *, seconds: float, value: str = "") -> None:
        """As `take`, from another thread: for a lease that this process already has."""
        self._submit(lambda: self.take(name, seconds=seconds, value=value))

    def find(self, name: str) -> Lease | None:
        """The lease of this name that has not ended, of any process."""
        try:
            leases = self._work.list_leases(name)
        except HoldfastError:
            return None
        return next((lease for lease in leases if lease.name == name and lease.seconds_left > 0), None)

    def release(self, name: str) -> None:
        try:
            self._work.release_lease(name, self.owner)
        except HoldfastError as error:
            logger.info("a lease is not released: %s", type(error).__name__)

    def release_soon(self, name: str) -> None:
        self._submit(lambda: self.release(name))

    def close(self) -> None:
        self._threads.shutdown()

    def _submit(self, change: Callable[[], object]) -> None:
        try:
            self._threads.submit(change)
        except RuntimeError:
            # The process is ending: the lease ends by itself.
            logger.info("a lease is left to its end")

    @contextmanager
    def renewed(self, name: str, *, seconds: float) -> Iterator[Callable[[], bool]]:
        """Renews a lease that was taken until the block ends; yields whether this process still has it."""
        is_ended, is_lost = threading.Event(), threading.Event()

        def renew() -> None:
            while not is_ended.wait(seconds / 3):
                if not self.take(name, seconds=seconds):
                    is_lost.set()

        thread = threading.Thread(target=renew, name="holdfast-lease", daemon=True)
        thread.start()
        try:
            yield lambda: not is_lost.is_set()
        finally:
            is_ended.set()
            thread.join()


class Job(msgspec.Struct, frozen=True):
    """Work that all processes together do once in `every_seconds`.

    `run` gets a function to call between two units of work: if that returns False, the process has lost the lease, or
    ends, and `run` must return.
    """

    name: str
    every_seconds: float
    run: Callable[[Callable[[], bool]], object]


def run_job(
    leases: ProcessLeases,
    job: Job,
    may_continue: Callable[[], bool] = lambda: True,
    *,
    lease_seconds: float = JOB_LEASE_SECONDS,
) -> bool:
    """Runs a job if it is due and no other process does; returns whether it was completed here.

    Then the lease stays until the job is due again. A process that dies, fails or stops leaves the job to the others.
    """
    name = f"{JOB_PREFIX}{job.name}"
    lease = leases.find(name)
    if (lease is not None and lease.value == DONE) or not leases.take(name, seconds=lease_seconds):
        return False
    is_stopped = is_done = False

    def check() -> bool:
        nonlocal is_stopped
        is_stopped = is_stopped or not (has_lease() and may_continue())
        return not is_stopped

    try:
        with leases.renewed(name, seconds=lease_seconds) as has_lease:
            job.run(check)
        is_done = not is_stopped and leases.take(name, seconds=job.every_seconds, value=DONE)
    finally:
        if not is_done:
            leases.release(name)
    return is_done
