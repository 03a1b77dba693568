"""Tools that a model may call: run bounded in time, in size and in number at once."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from holdfast.canonical.blocks import Image, Json, Opaque, Text, ToolResult, ToolUse, mend_surrogates
from holdfast.canonical.encoding import digest
from holdfast.canonical.tools import ToolSpec, check_arguments, spec_from_function, tool_spec
from holdfast.clock import Clock, system_clock
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
OUTPUT_CHARACTERS_MAX = 100_000


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
    if input_schema is not None:
        spec = tool_spec(name or function.__name__, description or inspect.getdoc(function) or "", input_schema)
    else:
        found = spec_from_function(function)
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
        gate = asyncio.Semaphore(self._at_once_max)
        finished: dict[int, ToolResult] = {}

        async def answer(number: int, call: ToolUse) -> None:
            async with gate:
                finished[number] = refusal(call, "The call was cancelled.")
                finished[number] = await self._answer(call, record, lambda result: finished.update({number: result}))

        tasks = [asyncio.ensure_future(answer(number, call)) for number, call in enumerate(calls)]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            await asyncio.gather(*tasks, return_exceptions=True)
            waiting = (refusal(call, "The call was cancelled before it was run.") for call in calls)
            raise ToolsCancelledError(
                tuple(finished.get(number, unrun) for number, unrun in enumerate(waiting))
            ) from None
        return tuple(finished[number] for number in range(len(calls)))

    async def _answer(self, call: ToolUse, record: Record, keep: Keep) -> ToolResult:
        chosen = self._tools.get(call.name)
        if chosen is None:
            known = ", ".join(sorted(self._tools)) or "none"
            message = f"There is no tool {call.name!r}. Known tools: {known}."
            await record(ToolFailed(call.id, "not_found", message, 0))
            return refusal(call, message)
        findings = check_arguments(chosen.spec, call.arguments_json)
        if findings:
            await record(ToolInputInvalid(call.name, findings))
            message = "The arguments do not fit the schema: " + "; ".join(findings)
            await record(ToolFailed(call.id, "validation_error", message, 0))
            return refusal(call, message)
        sent = call.arguments_json.encode()
        await record(ToolCalled(call.id, call.name, digest(sent), len(sent), chosen.side_effects))
        return await self._run(chosen, call, record, keep)

    async def _run(self, chosen: Tool, call: ToolUse, record: Record, keep: Keep) -> ToolResult:
        started = self._clock()

        async def fail(kind: ToolErrorClass, message: str) -> ToolResult:
            await record(ToolFailed(call.id, kind, message, self._since(started)))
            return refusal(call, message)

        try:
            async with asyncio.timeout(chosen.timeout_seconds):
                output = await _call(chosen.run, msgspec.json.decode(call.arguments_json))
            content = tool_content(output)
        except asyncio.CancelledError:
            await fail("cancelled", "The call was cancelled.")
            raise
        except TimeoutError:
            return await fail("timeout", f"The tool did not answer within {chosen.timeout_seconds:g} s.")
        except ToolError as error:
            return await fail("execution_error", mend_surrogates(str(error)) or "The tool failed.")
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is the model's to read, not ours to die of
            return await fail("execution_error", mend_surrogates(f"{type(error).__name__}: {error}"))
        # From here on the tool has done its work: a cancellation must not make the model believe otherwise.
        result = ToolResult(call.id, content)
        keep(result)
        size = sum(len(block.text.encode()) for block in content if isinstance(block, Text))
        await record(ToolCompleted(call.id, success=True, output_size_bytes=size, latency_ms=self._since(started)))
        return ToolResult(call.id, content)

    def _since(self, started: float) -> int:
        return round((self._clock() - started) * 1000)


class ToolsCancelledError(Exception):
    """Tools were cancelled; here is what to answer to every call so that the transcript stays legal."""

    def __init__(self, results: tuple[ToolResult, ...]) -> None:
        super().__init__("the tools were cancelled")
        self.results = results


def refusal(call: ToolUse, message: str) -> ToolResult:
    return ToolResult(call.id, (Text(message),), is_error=True)


def tool_content(output: ToolOutput) -> tuple[Text | Image | Opaque, ...]:
    """What a tool returned, as blocks that a provider takes: never empty, never longer than the limit."""
    match output:
        case Text() | Image():
            return _bounded((output,))
        case str():
            return _bounded((Text(output),))
        case [*blocks] if blocks and all(isinstance(block, Text | Image) for block in blocks):
            return _bounded(tuple(block for block in blocks if isinstance(block, Text | Image)))
        case None:
            return (Text("(no output)"),)
        case _:
            return _bounded((Text(msgspec.json.encode(output, order="sorted").decode()),))


def _bounded(blocks: tuple[Text | Image, ...]) -> tuple[Text | Image, ...]:
    room = OUTPUT_CHARACTERS_MAX
    kept: list[Text | Image] = []
    for block in blocks:
        if isinstance(block, Image):
            kept.append(block)
            continue
        text = mend_surrogates(block.text)
        if len(text) > room:
            head, tail = text[: room * 3 // 4], text[len(text) - room // 4 :]
            left_out = len(text) - len(head) - len(tail)
            text = f"{head}\n[... {left_out} characters left out ...]\n{tail}"
        room = max(0, room - len(text))
        kept.append(Text(text if text.strip() else "(no output)"))
    return tuple(kept)


async def _call(function: ToolFunction, arguments: dict[str, Json]) -> ToolOutput:
    if inspect.iscoroutinefunction(function):
        output: ToolOutput | Awaitable[ToolOutput] = function(**arguments)
    else:
        output = await asyncio.to_thread(function, **arguments)
    return await output if isinstance(output, Awaitable) else output
