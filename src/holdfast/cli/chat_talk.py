"""How a session is spoken to while a person waits: it lives on a loop of its own, what happens comes by a queue.

The terminal is read and written by the main thread alone, so that Ctrl-C always reaches somebody. Between messages the
loop goes on, and with it what keeps a cache alive.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from holdfast.engine.confirm import Confirmation, ConfirmationRequest
from holdfast.runtime.session import Session, StreamItem

Result = TypeVar("Result")


class Question(NamedTuple):
    """Whether a call may run; the turn waits until `answer` is called."""

    request: ConfirmationRequest
    answer: Callable[[Confirmation], None]


class Warned(NamedTuple):
    """Something that a part of the session wants to be known."""

    text: str


class Over(NamedTuple):
    """The turn is over: by itself, cancelled, or by an error."""

    cancelled: bool = False
    error: BaseException | None = None


Notice = StreamItem | Question | Warned | Over


class LoopThread:
    """An event loop that goes on while the main thread waits for a person."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="holdfast-chat", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """What the coroutine returns, or raises."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Talk:
    """One turn at a time: `begin` it, then read `notices` until it is `Over`."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self._loop = thread.loop
        self._turn: asyncio.Task[None] | None = None
        self._stopping = False
        self.notices: SimpleQueue[Notice] = SimpleQueue()

    def begin(self, session: Session, message: str) -> None:
        def start() -> None:
            self._turn = self._loop.create_task(self._speak(session, message))
            self._turn.add_done_callback(self._end)
            self._stopping = False

        self._loop.call_soon_threadsafe(start)

    def cancel(self) -> None:
        """Also from within a signal's handler: nothing is waited for, and nothing is shown."""
        self._loop.call_soon_threadsafe(self._cancel)

    async def confirm(self, request: ConfirmationRequest) -> Confirmation:
        """Ask whoever reads the notices."""
        answer: asyncio.Future[Confirmation] = self._loop.create_future()

        def settle(said: Confirmation) -> None:
            if not answer.done():
                answer.set_result(said)

        self.notices.put(Question(request, lambda said: void(self._loop.call_soon_threadsafe(settle, said))))
        return await answer

    async def _speak(self, session: Session, message: str) -> None:
        async with aclosing(session.stream(message)) as items:
            async for item in items:
                self.notices.put(item)

    def _end(self, turn: "asyncio.Task[None]") -> None:
        over = Over(cancelled=True) if turn.cancelled() else Over(error=turn.exception())
        self.notices.put(over)

    def _cancel(self) -> None:
        # Once is enough: a second time would not let the turn leave a legal conversation behind.
        if self._turn is not None and not self._stopping:
            self._stopping = True
            self._turn.cancel()


class Warnings(logging.Handler):
    """Puts warnings of the library among the notices, where they do not tear a line apart."""

    def __init__(self, notices: "SimpleQueue[Notice]") -> None:
        super().__init__(logging.WARNING)
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        self._notices.put(Warned(record.getMessage()))


def void(ignored: object) -> None:
    """Nothing; for a callback that must return nothing."""
