"""Calls a tool's function: on the event loop if it is asynchronous, else in a thread of its own."""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping

ThreadOutcome = tuple[object, BaseException | None]


class EscapedError(Exception):
    """Wraps an error of a tool's thread, such as SystemExit, that would stop more than the tool if raised here."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


async def call_function(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """The function's return value, awaited until it is no awaitable; raises what the function raises."""
    output = function(**arguments) if _is_asynchronous(function) else await run_in_thread(function, arguments)
    while isinstance(output, Awaitable):
        output = await output
    return output


def is_task_cancelled() -> bool:
    """Whether the current task was cancelled from outside.

    False if a CancelledError came from the function itself, such as from a task that it awaited.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_asynchronous(function: Callable[..., object]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def run_in_thread(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Run the function in a new daemon thread.

    Not in the event loop's pool: a call that never returns would occupy a worker forever and block the exit.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[ThreadOutcome] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(outcome: ThreadOutcome) -> None:
        if answer.done():
            _drop(outcome)
        else:
            answer.set_result(outcome)

    def work() -> None:
        try:
            outcome: ThreadOutcome = context.run(functools.partial(function, **arguments)), None
        except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
            outcome = None, error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:
            # The event loop is closed, so no one awaits the result any more.
            _drop(outcome)

    threading.Thread(target=work, name="holdfast-tool", daemon=True).start()
    output, error = await answer
    if error is None:
        return output
    # A StopIteration cannot leave a coroutine: Python would turn it into a RuntimeError.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raise error
    raise EscapedError(error)


def _drop(outcome: ThreadOutcome) -> None:
    # A coroutine that will not be awaited is closed, so that Python does not warn about it.
    if inspect.iscoroutine(outcome[0]):
        outcome[0].close()
