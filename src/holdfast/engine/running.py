"""How a tool's function is called: on the loop if it is asynchronous, in a thread of its own if it is not."""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping

Outcome = tuple[object, BaseException | None]


class EscapedError(Exception):
    """What a tool's thread raised would stop more than the tool if it were raised here; it is carried instead."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


async def call_function(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """What the function returns, awaited to its end; whatever it raises is raised here."""
    output = function(**arguments) if _is_asynchronous(function) else await in_own_thread(function, arguments)
    while isinstance(output, Awaitable):
        output = await output
    return output


def asked_to_stop() -> bool:
    """False for a cancellation that a function raised by itself, such as one of a task it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_asynchronous(function: Callable[..., object]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def in_own_thread(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Not the loop's pool: a call that never returns would take a place there for good, and be waited for at exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Outcome] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(outcome: Outcome) -> None:
        if answer.done():
            _drop(outcome)
        else:
            answer.set_result(outcome)

    def work() -> None:
        try:
            outcome: Outcome = context.run(functools.partial(function, **arguments)), None
        except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
            outcome = None, error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:
            # The loop is closed: whoever asked has left.
            _drop(outcome)

    threading.Thread(target=work, name="holdfast-tool", daemon=True).start()
    output, error = await answer
    if error is None:
        return output
    # A StopIteration cannot leave a coroutine; Python would put another error in its place.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raise error
    raise EscapedError(error)


def _drop(outcome: Outcome) -> None:
    # A coroutine that nobody will await is closed, or Python would complain of it.
    if inspect.iscoroutine(outcome[0]):
        outcome[0].close()
