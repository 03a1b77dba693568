"""Runs calls that wait at the same time together, in one thread.

Under load a hop to a thread and back costs more than most calls of the store, and 64 threads that wait for one another
take turns at the interpreter lock. Here the calls that arrive while a batch runs form the next one: one hop, one
transaction, and no call waits for a timer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatchedCalls(Generic[Item, Result]):
    """`run_all` gets at most `size_max` calls, oldest first, and returns a result or an exception for each.

    What it reads, it reads after each of its calls was made. One batch runs at a time.
    """

    def __init__(self, run_all: Callable[[Sequence[Item]], Sequence[Result | Exception]], *, size_max: int) -> None:
        self._run_all = run_all
        self._size_max = size_max
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        # Held here, because the loop itself has only weak references to tasks.
        self._task: asyncio.Task[None] | None = None

    async def run(self, item: Item) -> Result:
        """Raises what `run_all` returned for this call, or raised."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        # It ends without a pause after its last look at the queue, so a call that arrives then starts the next one.
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run_batches())
        return await future

    async def _run_batches(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._size_max], self._waiting[self._size_max :]
            results: Sequence[Result | Exception]
            try:
                results = await asyncio.to_thread(self._run_all, [item for item, _ in batch])
            except Exception as error:  # noqa: BLE001 - each caller gets the error, as if its call had run alone
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.cancelled():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
