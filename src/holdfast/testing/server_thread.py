"""Serves a simulated provider on a local port from its own thread, so that blocking clients can call it."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator

STEP_SECONDS_MAX = 5.0  # A server that does not start or stop must not hang the test run.
T = TypeVar("T")


class LoopThread:
    """An event loop that runs in its own thread."""

    def __enter__(self) -> "LoopThread":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STEP_SECONDS_MAX)

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STEP_SECONDS_MAX)
        self._loop.close()


@contextmanager
def serve_provider(provider: SimulatedProvider) -> Iterator[str]:
    """Serve the provider and yield its URL, without a path."""
    with LoopThread() as thread:
        server = thread.run(serve_simulator(provider))
        try:
            yield server.url
        finally:
            thread.run(server.aclose())
