"""What an agent did after a recall, in order: what it wrote, what it called, what it was shown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated

import msgspec

from holdfast.canonical.blocks import Message, Text, ToolResult, ToolUse
from holdfast.canonical.prompt import Passage
from holdfast.errors import UserError
from holdfast.instructions.failures import InstructionError

STEPS_MAX = 2_000
BYTES_MAX = 400_000
LEAVES_MAX = 2_000
INSTRUCTION_TOOLS = ("recall_instruction", "list_instructions", "submit_usage")

_Text = Annotated[str, msgspec.Meta(max_length=BYTES_MAX)]
_Tool = Annotated[str, msgspec.Meta(max_length=400)]


class Said(msgspec.Struct, frozen=True, tag_field="type", tag="said", forbid_unknown_fields=True):
    """The agent's own words."""

    text: _Text


class Called(msgspec.Struct, frozen=True, tag_field="type", tag="called", forbid_unknown_fields=True):
    """A tool that the agent called; arguments are an object, or the text of one."""

    tool: _Tool
    arguments: _Text | dict[str, object] = ""


class Shown(msgspec.Struct, frozen=True, tag_field="type", tag="shown", forbid_unknown_fields=True):
    """What somebody else put before the agent: a result of the tool that is named, or else a person's message."""

    text: _Text
    tool: _Tool = ""


Step = Said | Called | Shown

Trace = tuple[Step, ...]

STEP_KINDS = ("said", "called", "shown")
_TOKEN = re.compile(r"\baudi_\w{1,100}")

_decode = msgspec.json.Decoder(Step).decode
_encode = msgspec.json.Encoder().encode


def is_of_instructions(tool: str) -> bool:
    """Whether a tool deals with instructions, by whatever server it is offered: that is no use of them."""
    return tool.endswith(INSTRUCTION_TOOLS)


def steps_of(messages: Iterable[Message | Passage], tools: dict[str, str] | None = None) -> Iterator[Step]:
    """What messages say; thinking, images and what no version knows are nobody's business here.

    `tools` are the names of those that were called, by the id of the call; whoever reads on hands them over again.
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
                    told = "\n".join(part.text for part in block.content if isinstance(part, Text))
                    yield Shown(told, name or tools.get(call_id, "a tool"))
                case _:
                    continue


def read_steps(lines: Iterable[bytes]) -> Trace:
    """One step a line. Raises UserError that names the line and quotes none of it."""
    found: list[Step] = []
    for number, line in zip(count(1), lines, strict=False):
        if not line.strip():
            continue
        try:
            found.append(_decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UserError(
                f"line {number} of the trace is no step; a step is a JSON object of the type said, called or shown"
            ) from error
    return tuple(found)


def from_token(trace: Sequence[Step], token: str) -> Trace:
    """From the step on in which a recall tells its token; all of it where the token stands nowhere."""
    places = (place for place, step in enumerate(trace) if _tells(step, token))
    return tuple(trace[next(places, 0) :])


def after_token(trace: Sequence[Step], token: str) -> Trace:
    """The same without that step, in which the units of the recall stand."""
    found = from_token(trace, token)
    return found[1:] if found and _tells(found[0], token) else found


def _tells(step: Step, token: str) -> bool:
    return isinstance(step, Shown) and token in step.text


def tokens_in(trace: Iterable[Step]) -> tuple[str, ...]:
    """The tokens of the recalls that a tool answered, oldest first."""
    told = (step.text for step in trace if isinstance(step, Shown) and is_of_instructions(step.tool))
    # The token ends an answer; what stands before it is the text of units.
    found = (_TOKEN.findall(text)[-1:] for text in told)
    return tuple(dict.fromkeys(token for some in found for token in some))


def check_size(trace: Sequence[Step]) -> None:
    """Raises InstructionError `trace_too_large`."""
    sizes = [size_of(step) for step in trace[: STEPS_MAX + 1]]
    if len(sizes) > STEPS_MAX or None in sizes or sum(size or 0 for size in sizes) > BYTES_MAX:
        raise InstructionError("trace_too_large", f"a trace has {STEPS_MAX} steps and {BYTES_MAX} bytes at most")


def shortened(trace: Iterable[Step]) -> Trace:
    """The first steps, as many as may be sent; without those that cannot be spelled."""
    kept: list[Step] = []
    left = BYTES_MAX
    for step in trace:
        size = size_of(step)
        if size is None:
            continue
        left -= size
        if left < 0 or len(kept) == STEPS_MAX:
            break
        kept.append(step)
    return tuple(kept)


def size_of(step: Step) -> int | None:
    """In bytes, as it is sent; None for what cannot be."""
    try:
        return len(_encode(step))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def texts_in(arguments: str | dict[str, object]) -> Iterator[tuple[str, str]]:
    """The texts in the arguments of a call, each with the name of the member that it stands in or below."""
    given: object = arguments
    if isinstance(arguments, str):
        try:
            given = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            given = arguments
    pending: list[tuple[str, object]] = [("", given)]
    for _ in range(LEAVES_MAX):
        if not pending:
            return
        name, value = pending.pop()
        match value:
            case str():
                yield name, value
            case list() if value and all(isinstance(one, str) for one in value):
                yield name, " ".join(map(str, value[:LEAVES_MAX]))
            case list():
                pending += [(name, one) for one in reversed(value[:LEAVES_MAX])]
            case dict():
                pending += [(str(key), one) for key, one in reversed(value.items())]
            case _:
                continue
