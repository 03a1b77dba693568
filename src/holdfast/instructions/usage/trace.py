"""Traces: what an agent did after a recall, in order. Text it wrote, tools it called, text it was shown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated

import msgspec

from holdfast.errors import InstructionError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.session import MessageAppended
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry

# Bounds on what one request can make the detector read.
TRACE_STEPS_MAX = 2_000
TRACE_BYTES_MAX = 400_000
ARGUMENT_LEAVES_MAX = 2_000
INSTRUCTION_TOOLS = ("recall_instruction", "list_instructions", "submit_usage")
_Text = Annotated[str, msgspec.Meta(max_length=TRACE_BYTES_MAX)]
_Tool = Annotated[str, msgspec.Meta(max_length=400)]


class AgentTextStep(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: _Text


class ToolCallStep(msgspec.Struct, frozen=True, tag_field="type", tag="tool_call", forbid_unknown_fields=True):
    """A tool call by the agent; arguments are an object, or its JSON text."""

    tool: _Tool
    arguments: _Text | dict[str, object] = ""


class ObservationStep(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """Text that the agent received: a result of the named tool, or without one a user message."""

    text: _Text
    tool: _Tool = ""


TraceStep = AgentTextStep | ToolCallStep | ObservationStep
Trace = tuple[TraceStep, ...]
STEP_KINDS = ("text", "tool_call", "tool_result")
_TOKEN = re.compile(r"\baudi_\w{1,100}")
_decode = msgspec.json.Decoder(TraceStep).decode
_encode = msgspec.json.Encoder().encode


def is_instruction_tool(tool: str) -> bool:
    """Whether a tool is one of the instruction tools, under any server prefix; calling those is not usage."""
    return tool.endswith(INSTRUCTION_TOOLS)


def extract_steps(
    messages: Iterable[Message | HistoryEntry], tools: dict[str, str] | None = None
) -> Iterator[TraceStep]:
    """The steps in messages; thinking, images and unknown blocks are skipped.

    `tools` maps call ids to tool names and is updated; pass the same one again to continue with later messages.
    """
    tools = {} if tools is None else tools
    for message in messages:
        for block in message.content:
            match block:
                case Text(text=text):
                    yield AgentTextStep(text) if message.role == "assistant" else ObservationStep(text)
                case ToolUse(id=call_id, name=name, arguments_json=arguments):
                    tools[call_id] = name
                    yield ToolCallStep(name, arguments)
                case ToolResult(tool_use_id=call_id, name=name):
                    text_shown = "\n".join(part.text for part in block.content if isinstance(part, Text))
                    yield ObservationStep(text_shown, name or tools.get(call_id, "a tool"))
                case _:
                    continue


def decode_steps(lines: Iterable[bytes]) -> Trace:
    """Decode one step per line. Raises UserError, which names the line but quotes none of its content."""
    steps: list[TraceStep] = []
    for number, line in zip(count(1), lines, strict=False):
        if not line.strip():
            continue
        try:
            steps.append(_decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            step_form = f"a step is a JSON object of type {', '.join(STEP_KINDS)}"
            raise UserError(f"line {number} of the trace is not a step; {step_form}") from error
    return tuple(steps)


def trace_from_token(trace: Sequence[TraceStep], token: str) -> Trace:
    """The trace from the step that shows the audit token on; the whole trace if no step does."""
    positions = (position for position, step in enumerate(trace) if _shows_token(step, token))
    return tuple(trace[next(positions, 0) :])


def trace_after_token(trace: Sequence[TraceStep], token: str) -> Trace:
    """As `trace_from_token`, without that step itself, which contains the recalled units."""
    rest = trace_from_token(trace, token)
    return rest[1:] if rest and _shows_token(rest[0], token) else rest


def _shows_token(step: TraceStep, token: str) -> bool:
    return isinstance(step, ObservationStep) and token in step.text


def find_audit_tokens(trace: Iterable[TraceStep]) -> tuple[str, ...]:
    """The audit tokens in results of instruction tools, oldest first."""
    results = (step.text for step in trace if isinstance(step, ObservationStep) and is_instruction_tool(step.tool))
    # The token is at the end of a result; what looks like one before it is text of the units.
    last_tokens = (_TOKEN.findall(text)[-1:] for text in results)
    return tuple(dict.fromkeys(token for tokens in last_tokens for token in tokens))


def check_trace_size(trace: Sequence[TraceStep]) -> None:
    """Raises InstructionError `trace_too_large`."""
    sizes = [encoded_step_size(step) for step in trace[: TRACE_STEPS_MAX + 1]]
    if len(sizes) > TRACE_STEPS_MAX or None in sizes or sum(size or 0 for size in sizes) > TRACE_BYTES_MAX:
        message = f"a trace has {TRACE_STEPS_MAX} steps and {TRACE_BYTES_MAX} bytes at most"
        raise InstructionError("trace_too_large", message)


def truncate_trace(trace: Iterable[TraceStep]) -> Trace:
    """The first steps within the size limits, without those that cannot be encoded."""
    steps: list[TraceStep] = []
    bytes_left = TRACE_BYTES_MAX
    for step in trace:
        size = encoded_step_size(step)
        if size is None:
            continue
        bytes_left -= size
        if bytes_left < 0 or len(steps) == TRACE_STEPS_MAX:
            break
        steps.append(step)
    return tuple(steps)


def encoded_step_size(step: TraceStep) -> int | None:
    """The size in bytes as encoded; None if it cannot be encoded."""
    try:
        return len(_encode(step))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def find_argument_texts(arguments: str | dict[str, object]) -> Iterator[tuple[str, str]]:
    """The strings in the arguments of a call, each with the name of its closest enclosing member."""
    value_in: object = arguments
    if isinstance(arguments, str):
        try:
            value_in = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            value_in = arguments
    pending: list[tuple[str, object]] = [("", value_in)]
    for _ in range(ARGUMENT_LEAVES_MAX):
        if not pending:
            return
        name, value = pending.pop()
        match value:
            case str():
                yield name, value
            case list() if value and all(isinstance(element, str) for element in value):
                yield name, " ".join(map(str, value[:ARGUMENT_LEAVES_MAX]))
            case list():
                pending += [(name, element) for element in reversed(value[:ARGUMENT_LEAVES_MAX])]
            case dict():
                pending += [(str(key), element) for key, element in reversed(value.items())]
            case _:
                continue


class StepCollector:
    """The steps of one session, in order; steps of sessions it delegates to are not included."""

    def __init__(self) -> None:
        self.steps: list[TraceStep] = []
        self._session_id: str | None = None
        self._tools: dict[str, str] = {}

    def on_event(self, event: Event) -> None:
        self._session_id = self._session_id or event.session_id
        if isinstance(event.payload, MessageAppended) and event.session_id == self._session_id:
            self.steps.extend(extract_steps([event.payload.message], self._tools))
