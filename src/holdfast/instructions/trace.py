"""Traces: what an agent did after a recall, in order. Text it wrote, tools it called, text it was shown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated

import msgspec

from holdfast.canonical.blocks import Message, Text, ToolResult, ToolUse
from holdfast.canonical.prompt import Passage
from holdfast.errors import UserError
from holdfast.instructions.failures import InstructionError

# Bounds on what one request can make the detector read.
STEPS_MAX = 2_000
BYTES_MAX = 400_000
LEAVES_MAX = 2_000
INSTRUCTION_TOOLS = ("recall_instruction", "list_instructions", "submit_usage")

_Text = Annotated[str, msgspec.Meta(max_length=BYTES_MAX)]
_Tool = Annotated[str, msgspec.Meta(max_length=400)]


class Said(msgspec.Struct, frozen=True, tag_field="type", tag="said", forbid_unknown_fields=True):
    """Text that the agent wrote."""

    text: _Text


class Called(msgspec.Struct, frozen=True, tag_field="type", tag="called", forbid_unknown_fields=True):
    """A tool call by the agent; arguments are an object, or its JSON text."""

    tool: _Tool
    arguments: _Text | dict[str, object] = ""


class Shown(msgspec.Struct, frozen=True, tag_field="type", tag="shown", forbid_unknown_fields=True):
    """Text that the agent received: a result of the named tool, or without one a user message."""

    text: _Text
    tool: _Tool = ""


Step = Said | Called | Shown

Trace = tuple[Step, ...]

STEP_KINDS = ("said", "called", "shown")
_TOKEN = re.compile(r"\baudi_\w{1,100}")

_decode = msgspec.json.Decoder(Step).decode
_encode = msgspec.json.Encoder().encode


def is_of_instructions(tool: str) -> bool:
    """Whether a tool is one of the instruction tools, under any server prefix; calling those is not usage."""
    return tool.endswith(INSTRUCTION_TOOLS)


def steps_of(messages: Iterable[Message | Passage], tools: dict[str, str] | None = None) -> Iterator[Step]:
    """The steps in messages; thinking, images and unknown blocks are skipped.

    `tools` maps call ids to tool names and is updated; pass the same one again to continue with later messages.
    """
    tools = {} if tools is None else tools
    for message in messages:
        for block in message.content:
            match block:
                case Text(text=text):
                    yield Said(text) if message.role == "assistant" else Shown(text)
                case ToolUse(id=call_id, name=name, arguments_json=arguments):
                    tools[call_id] = name
                    yield Called(name, arguments)
                case ToolResult(tool_use_id=call_id, name=name):
                    text_shown = "\n".join(part.text for part in block.content if isinstance(part, Text))
                    yield Shown(text_shown, name or tools.get(call_id, "a tool"))
                case _:
                    continue


def read_steps(lines: Iterable[bytes]) -> Trace:
    """Decode one step per line. Raises UserError, which names the line but quotes none of its content."""
    steps: list[Step] = []
    for number, line in zip(count(1), lines, strict=False):
        if not line.strip():
            continue
        try:
            steps.append(_decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UserError(
                f"line {number} of the trace is not a step; a step is a JSON object of type said, called or shown"
            ) from error
    return tuple(steps)


def from_token(trace: Sequence[Step], token: str) -> Trace:
    """The trace from the step that shows the audit token on; the whole trace if no step does."""
    positions = (position for position, step in enumerate(trace) if _shows_token(step, token))
    return tuple(trace[next(positions, 0) :])


def after_token(trace: Sequence[Step], token: str) -> Trace:
    """As `from_token`, without that step itself, which contains the recalled units."""
    rest = from_token(trace, token)
    return rest[1:] if rest and _shows_token(rest[0], token) else rest


def _shows_token(step: Step, token: str) -> bool:
    return isinstance(step, Shown) and token in step.text


def tokens_in(trace: Iterable[Step]) -> tuple[str, ...]:
    """The audit tokens in results of instruction tools, oldest first."""
    results = (step.text for step in trace if isinstance(step, Shown) and is_of_instructions(step.tool))
    # The token is at the end of a result; what looks like one before it is text of the units.
    last_tokens = (_TOKEN.findall(text)[-1:] for text in results)
    return tuple(dict.fromkeys(token for tokens in last_tokens for token in tokens))


def check_size(trace: Sequence[Step]) -> None:
    """Raises InstructionError `trace_too_large`."""
    sizes = [size_of(step) for step in trace[: STEPS_MAX + 1]]
    if len(sizes) > STEPS_MAX or None in sizes or sum(size or 0 for size in sizes) > BYTES_MAX:
        raise InstructionError("trace_too_large", f"a trace has {STEPS_MAX} steps and {BYTES_MAX} bytes at most")


def shortened(trace: Iterable[Step]) -> Trace:
    """The first steps within the size limits, without those that cannot be encoded."""
    steps: list[Step] = []
    bytes_left = BYTES_MAX
    for step in trace:
        size = size_of(step)
        if size is None:
            continue
        bytes_left -= size
        if bytes_left < 0 or len(steps) == STEPS_MAX:
            break
        steps.append(step)
    return tuple(steps)


def size_of(step: Step) -> int | None:
    """The size in bytes as encoded; None if it cannot be encoded."""
    try:
        return len(_encode(step))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def texts_in(arguments: str | dict[str, object]) -> Iterator[tuple[str, str]]:
    """The strings in the arguments of a call, each with the name of its closest enclosing member."""
    value_in: object = arguments
    if isinstance(arguments, str):
        try:
            value_in = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            value_in = arguments
    pending: list[tuple[str, object]] = [("", value_in)]
    for _ in range(LEAVES_MAX):
        if not pending:
            return
        name, value = pending.pop()
        match value:
            case str():
                yield name, value
            case list() if value and all(isinstance(element, str) for element in value):
                yield name, " ".join(map(str, value[:LEAVES_MAX]))
            case list():
                pending += [(name, element) for element in reversed(value[:LEAVES_MAX])]
            case dict():
                pending += [(str(key), element) for key, element in reversed(value.items())]
            case _:
                continue
