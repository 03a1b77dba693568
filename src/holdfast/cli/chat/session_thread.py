"""Runs a session on its own event loop thread and passes what happens to the main thread through a queue.

Only the main thread reads and writes the terminal, so that Ctrl-C is always handled. The loop keeps running between
messages, which lets keep-alive pings go out while the user thinks.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from holdfast.engine.tools.permissions import Confirmation, ConfirmationRequest
from holdfast.redaction import redact_secrets
from holdfast.runtime.session import Session, StreamItem

Result = TypeVar("Result")


class ConfirmationQuestion(NamedTuple):
    """Asks whether a tool call may run; the turn waits until `answer` is called."""

    request: ConfirmationRequest
    answer: Callable[[Confirmation], None]


class WarningNotice(NamedTuple):
    """A warning logged by the library."""

    text: str


class TurnEnd(NamedTuple):
    """The turn has ended: completed, cancelled, or failed with an error."""

    cancelled: bool = False
    error: BaseException | None = None


ChatNotice = StreamItem | ConfirmationQuestion | WarningNotice | TurnEnd


class ChatLoopThread:
    """An event loop that keeps running while the main thread waits for the user."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="holdfast-chat", daemon=True)
        self._thread.start()

    def run_coroutine(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """Run the coroutine on the loop and return its result or raise its exception."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class TurnRunner:
    """Runs one turn at a time: `start_turn`, then read `notices` until a `TurnEnd` arrives."""

    def __init__(self, thread: ChatLoopThread) -> None:
        self.thread = thread
        self._loop = thread.loop
        self._turn: asyncio.Task[None] | None = None
        self._stopping = False
        self.notices: SimpleQueue[ChatNotice] = SimpleQueue()

    def start_turn(self, session: Session, message: str) -> None:
        def start() -> None:
            self._turn = self._loop.create_task(self._stream(session, message))
            self._turn.add_done_callback(self._end)
            self._stopping = False

        self._loop.call_soon_threadsafe(start)

    def cancel_turn(self) -> None:
        """Safe to call from a signal handler: it neither blocks nor prints."""
        self._loop.call_soon_threadsafe(self._cancel)

    async def ask_confirmation(self, request: ConfirmationRequest) -> Confirmation:
        """Put the question into `notices` and wait for its answer."""
        answer: asyncio.Future[Confirmation] = self._loop.create_future()

        def settle(decision: Confirmation) -> None:
            if not answer.done():
                answer.set_result(decision)

        self.notices.put(
            ConfirmationQuestion(
                request, lambda decision: discard_result(self._loop.call_soon_threadsafe(settle, decision))
            )
        )
        return await answer

    async def _stream(self, session: Session, message: str) -> None:
        async with aclosing(session.stream(message)) as items:
            async for item in items:
                self.notices.put(item)

    def _end(self, turn: "asyncio.Task[None]") -> None:
        over = TurnEnd(cancelled=True) if turn.cancelled() else TurnEnd(error=turn.exception())
        self.notices.put(over)

    def _cancel(self) -> None:
        # A second cancellation would interrupt the clean-up that leaves a valid conversation behind.
        if self._turn is not None and not self._stopping:
            self._stopping = True
            self._turn.cancel()


class WarningNoticeHandler(logging.Handler):
    """Logging handler that queues warnings as notices, so that they are not printed in the middle of a line."""

    def __init__(self, notices: "SimpleQueue[ChatNotice]") -> None:
        super().__init__(logging.WARNING)
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        self._notices.put(WarningNotice(redact_secrets(record.getMessage())))


def discard_result(ignored: object) -> None:
    """Discard a result, for callbacks that must return None."""
