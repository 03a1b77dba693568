"""How those who write at once share one transaction: the first of them commits for all who wait."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock

import msgspec

from holdfast.errors import StoreError
from holdfast.stores.steps import Step


class _Waiting(msgspec.Struct, frozen=True):
    step: Step
    done: Future[bool]


class Together:
    """Nobody waits longer than for the commit that is under way and the next one."""

    def __init__(self, change_all: Callable[[Sequence[Step]], bool]) -> None:
        self._change_all = change_all
        self._lock = Lock()
        self._turn = Lock()
        self._queue: list[_Waiting] = []

    def write(self, step: Step) -> bool:
        """Written once this returns; False where the row may not be. Raises StoreError."""
        mine = _Waiting(step, Future())
        with self._lock:
            self._queue.append(mine)
        with self._turn:
            if not mine.done.done():
                with self._lock:
                    group, self._queue = self._queue, []
                self._commit(group)
        return mine.done.result()

    def _commit(self, group: Sequence[_Waiting]) -> None:
        try:
            if self._change_all([one.step for one in group]):
                for one in group:
                    one.done.set_result(True)
                return
            # One of them is at fault; the others are not to suffer for it.
            for one in group:
                one.done.set_result(len(group) > 1 and self._change_all([one.step]))
        except StoreError as error:
            for one in group:
                if not one.done.done():
                    one.done.set_exception(StoreError(str(error)))
