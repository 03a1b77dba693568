"""The content of a simulated reply: the scripted blocks with ids filled in, or an echo of the user."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Block, Message, Text, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.reply import StopReason
from holdfast.simulator.script import ScriptedReply

ECHO_CHARS_MAX = 400
_ID_CHARS = 24


def reply_content(
    scripted: ScriptedReply, messages: Sequence[Message], *, prefix: str, call_id_prefix: str
) -> tuple[Block, ...]:
    """The scripted blocks, or an echo; generated call ids depend only on the conversation so far."""
    if scripted.content is None:
        return (Text(_echo(messages)),)
    # Ids are derived from the conversation, so that a replayed session gets the same bytes.
    return tuple(
        ToolUse(f"{call_id_prefix}{digest(f'{prefix}/{index}'.encode())[:_ID_CHARS]}", block.name, block.arguments_json)
        if isinstance(block, ToolUse) and not block.id
        else block
        for index, block in enumerate(scripted.content)
    )


def stop_reason_of(scripted: ScriptedReply, content: Sequence[Block]) -> StopReason:
    if scripted.stop_reason is not None:
        return scripted.stop_reason
    return "tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn"


def _echo(messages: Sequence[Message]) -> str:
    """An echo of the last text of the user."""
    texts = [
        block.text
        for message in messages
        if message.role == "user"
        for block in message.content
        if isinstance(block, Text)
    ]
    if not texts:
        return "Echo: nothing was said."
    text = texts[-1]
    return f"Echo: {text}" if len(text) <= ECHO_CHARS_MAX else f"Echo: {text[:ECHO_CHARS_MAX]}…"
