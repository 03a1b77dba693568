"""Tools that a model may call: run bounded in time, in size and in number at once."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from holdfast.canonical.blocks import Image, Json, Text, ToolResult, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.tools import ToolSpec, check_arguments, spec_from_function, tool_spec
from holdfast.clock import Clock, system_clock
from holdfast.engine.output import shortened, tool_content
from holdfast.engine.running import EscapedError, call_function
from holdfast.errors import UserError
from holdfast.events.payloads import (
    AnyPayload,
    SideEffects,
    ToolCalled,
    ToolCompleted,
    ToolErrorClass,
    ToolFailed,
    ToolInputInvalid,
)

ToolOutput = str | Text | Image | Sequence[Text | Image] | Json
ToolFunction = Callable[..., ToolOutput | Awaitable[ToolOutput]]
Record = Callable[[AnyPayload], Awaitable[None]]
Keep = Callable[[ToolResult], None]

TIMEOUT_SECONDS = 60.0
AT_ONCE_MAX = 4


class ToolError(Exception):
    """Raised by a tool to tell the model, in its own words, why the call failed."""


class Tool(msgspec.Struct, frozen=True):
    """A function together with what the model is told about it."""

    spec: ToolSpec
    run: ToolFunction
    side_effects: SideEffects = "none"
    timeout_seconds: float = TIMEOUT_SECONDS


def tool(
    function: ToolFunction,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Json] | None = None,
    side_effects: SideEffects = "none",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Tool:
    """A tool from a function: its name, docstring and annotations say what the model sees, unless given here."""
    shown = _readable(function)
    if input_schema is not None:
        spec = tool_spec(name or shown.__name__, description or inspect.getdoc(shown) or "", input_schema)
    else:
        found = spec_from_function(shown)
        spec = msgspec.structs.replace(found, name=name or found.name, description=description or found.description)
    return Tool(spec, function, side_effects, timeout_seconds)


class Toolbox:
    """The tools of a session, by name."""

    def __init__(
        self,
        tools: Sequence[Tool | ToolFunction],
        *,
        clock: Clock = system_clock,
        at_once_max: int = AT_ONCE_MAX,
    ) -> None:
        known = [one if isinstance(one, Tool) else tool(one) for one in tools]
        self._tools = {one.spec.name: one for one in known}
        if len(self._tools) != len(known):
            names = sorted(one.spec.name for one in known)
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"two tools are named {twice!r}; give one of them another name")
        self._clock = clock
        self._at_once_max = at_once_max

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(self._tools[name].spec for name in sorted(self._tools))

    async def run(self, calls: Sequence[ToolUse], record: Record) -> tuple[ToolResult, ...]:
        """Answer every call, in the order of the calls; cancelled, the ones under way are answered as such."""
        if not calls:
            return ()
        gate = asyncio.Semaphore(self._at_once_max)
        answers = [refusal(call, "The call was cancelled before it was run.") for call in calls]

        async def answer(number: int, call: ToolUse) -> None:
            async with gate:
                answers[number] = refusal(call, "The call was cancelled.")
                await self._answer(_Call(call, record, functools.partial(answers.__setitem__, number), self._clock))

        tasks = [asyncio.ensure_future(answer(number, call)) for number, call in enumerate(calls)]
        cancelled = False
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            cancelled = True
        failure = _first_failure(tasks)
        # No tool may run on behind the turn that asked for it, whatever ends the turn.
        cancelled = await _stop(tasks) or cancelled
        if cancelled:
            raise ToolsCancelledError(tuple(answers))
        if failure is not None:
            raise failure
        return tuple(answers)

    async def _answer(self, call: "_Call") -> None:
        used = call.use
        chosen = self._tools.get(used.name)
        if chosen is None:
            known = ", ".join(sorted(self._tools)) or "none"
            await call.fail("not_found", f"There is no tool {used.name!r}. Known tools: {known}.")
            return
        findings = check_arguments(chosen.spec, used.arguments_json)
        if findings:
            await call.record(ToolInputInvalid(used.name, findings))
            await call.fail("validation_error", "The arguments do not fit the schema: " + "; ".join(findings))
            return
        sent = used.arguments_json.encode()
        await call.record(ToolCalled(used.id, used.name, digest(sent), len(sent), chosen.side_effects))
        await _run(chosen, call)


class _Call:
    """One call under way: its answer is kept before it is recorded, so that a cancellation cannot belie it."""

    def __init__(self, use: ToolUse, record: Record, keep: Keep, clock: Clock) -> None:
        self.use = use
        self.record = record
        self._keep = keep
        self._clock = clock
        self._started: float | None = None

    def begin(self) -> None:
        self._started = self._clock()

    async def fail(self, kind: ToolErrorClass, message: str) -> None:
        told = shortened(message)
        self._keep(refusal(self.use, told))
        await self.record(ToolFailed(self.use.id, kind, told, self._since_ms()))

    async def complete(self, content: tuple[Text | Image, ...]) -> None:
        self._keep(ToolResult(self.use.id, content, name=self.use.name))
        size = sum(len(block.text.encode()) for block in content if isinstance(block, Text))
        await self.record(ToolCompleted(self.use.id, True, size, self._since_ms()))

    def _since_ms(self) -> int:
        return 0 if self._started is None else round((self._clock() - self._started) * 1000)


class ToolsCancelledError(Exception):
    """Tools were cancelled; here is what to answer to every call so that the transcript stays legal."""

    def __init__(self, results: tuple[ToolResult, ...]) -> None:
        super().__init__("the tools were cancelled")
        self.results = results


def refusal(call: ToolUse, message: str) -> ToolResult:
    return ToolResult(call.id, (Text(message),), is_error=True, name=call.name)


def _readable(function: ToolFunction) -> Callable[..., object]:
    """A partial or a callable object as a function that reads like it; what is bound already does not show."""
    bound: set[str] = set()
    inner: Callable[..., object] = function
    while isinstance(inner, functools.partial):
        bound |= inner.keywords.keys()
        inner = inner.func
    if inner is function and hasattr(function, "__name__"):
        return function
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return function

    def shown() -> None: ...

    functools.update_wrapper(shown, inner if hasattr(inner, "__name__") else type(inner).__call__)
    if not hasattr(inner, "__name__"):
        shown.__name__ = type(inner).__name__
        shown.__doc__ = inspect.getdoc(inner) or shown.__doc__
    parameters = [one for one in signature.parameters.values() if one.name not in bound]
    shown.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # PEP 362
    return shown


async def _run(chosen: Tool, call: _Call) -> None:
    limit = asyncio.timeout(chosen.timeout_seconds)
    call.begin()
    try:
        async with limit:
            output = await call_function(chosen.run, msgspec.json.decode(call.use.arguments_json))
        content = tool_content(output)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Whatever a tool raises is the model's to read, not ours to die of.
        if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
            await call.fail("cancelled", "The call was cancelled.")
            raise
        if limit.expired():
            await call.fail("timeout", f"The tool did not answer within {chosen.timeout_seconds:g} s.")
        else:
            await call.fail("execution_error", _words(error))
    else:
        await call.complete(content)


def _asked_to_stop() -> bool:
    """False for a cancellation that a tool raised by itself, such as one of a task it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _words(error: BaseException) -> str:
    if isinstance(error, EscapedError):
        error = error.error
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error that cannot say what it is still has a name
        text = ""
    if isinstance(error, ToolError):
        return text if text.strip() else "The tool failed."
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def _first_failure(tasks: Sequence[asyncio.Future[None]]) -> BaseException | None:
    over = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((error for error in over if error is not None), None)


async def _stop(tasks: Sequence[asyncio.Future[None]]) -> bool:
    """Cancel what still runs and wait for its end; whether we were asked to stop ourselves meanwhile."""
    cancelled = False
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            cancelled = True
    # Asked for, so that Python does not report as unheard what failed while it was being stopped.
    _ = [task.exception() for task in tasks if not task.cancelled()]
    return cancelled
