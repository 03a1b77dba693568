"""What a simulated reply holds: the script's blocks made whole, or an echo."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.canonical.blocks import Block, Message, Text, ToolUse
from holdfast.canonical.encoding import digest, plain_json
from holdfast.canonical.reply import StopReason
from holdfast.simulator.script import ScriptedReply
from holdfast.simulator.thinking import DroppedBlock

ECHO_CHARS_MAX = 400
_ID_CHARS = 24


def reply_content(scripted: ScriptedReply, messages: Sequence[Message], *, prefix: str) -> tuple[Block, ...]:
    """The script's blocks, calls with ids that depend on nothing but the conversation so far; or an echo."""
    if scripted.content is None:
        return (Text(_echo(messages)),)
    return tuple(
        ToolUse(f"toolu_{digest(f'{prefix}/{index}'.encode())[:_ID_CHARS]}", block.name, block.arguments_json)
        if isinstance(block, ToolUse) and not block.id
        else block
        for index, block in enumerate(scripted.content)
    )


def stop_reason_of(scripted: ScriptedReply, content: Sequence[Block]) -> StopReason:
    if scripted.stop_reason is not None:
        return scripted.stop_reason
    return "tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn"


def _echo(messages: Sequence[Message]) -> str:
    """The last thing a user said, in the words of the simulator."""
    said = [
        block.text
        for message in messages
        if message.role == "user"
        for block in message.content
        if isinstance(block, Text)
    ]
    if not said:
        return "Echo: nothing was said."
    text = said[-1]
    return f"Echo: {text}" if len(text) <= ECHO_CHARS_MAX else f"Echo: {text[:ECHO_CHARS_MAX]}…"


def with_input_transformations(body: bytes, dropped: Sequence[DroppedBlock]) -> bytes:
    """A whole reply that also says which blocks of the request the model did not see."""
    message: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return plain_json({**message, "input_transformations": dropped})


def stream_with_input_transformations(events: Iterator[bytes], dropped: Sequence[DroppedBlock]) -> Iterator[bytes]:
    """A streamed reply that says the same, as the provider does, where the message starts."""
    name, _, start = next(events).partition(b"\ndata: ")
    event: dict[str, msgspec.Raw] = msgspec.json.decode(start, type=dict[str, msgspec.Raw])
    message = with_input_transformations(bytes(event["message"]), dropped)
    yield name + b"\ndata: " + plain_json({**event, "message": msgspec.Raw(message)}) + b"\n\n"
    yield from events
