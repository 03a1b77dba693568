"""Group commit: concurrent writers share one transaction, which the first of them commits for all that wait."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock

import msgspec

from holdfast.errors import StoreError
from holdfast.stores.steps import Step


class _PendingStep(msgspec.Struct, frozen=True):
    step: Step
    done: Future[bool]


class Together:
    """A writer waits at most for the commit in progress and the next one."""

    def __init__(self, change_all: Callable[[Sequence[Step]], bool]) -> None:
        self._change_all = change_all
        self._lock = Lock()
        self._commit_lock = Lock()
        self._queue: list[_PendingStep] = []

    def write(self, step: Step) -> bool:
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
                    pending.done.set_exception(StoreError(str(error)))
