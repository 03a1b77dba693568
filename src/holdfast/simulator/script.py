"""Scripts of the simulated model: one reply per line of a JSONL file, the same for every conversation.

After the end of the script, the model echoes the user.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.providers.anthropic.blocks import decode_anthropic_block
from holdfast.simulator.faults import Fault, parse_fault
from holdfast.types.blocks import Block, Message, Text, ToolUse
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.reply import StopReason

SCRIPT_BYTES_MAX = 64 * 1024 * 1024
_STOP_REASONS: tuple[StopReason, ...] = ("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal")


class ScriptedReply(msgspec.Struct, frozen=True):
    """One reply, and the faults that occur before it. `content` is None after the end of the script.

    Tool calls may have an empty id, and thinking has no signature; both are filled in when the reply is sent.
    """

    content: tuple[Block, ...] | None
    stop_reason: StopReason | None = None
    faults: tuple[Fault, ...] = ()


_END_OF_SCRIPT = ScriptedReply(None)
ReplyFunction = Callable[[Sequence[Message]], ScriptedReply]
"""Computes a reply from the conversation, for cases in which a fixed script cannot know the requests."""


class Script(msgspec.Struct, frozen=True):
    replies: tuple[ScriptedReply, ...] = ()

    def find_reply(self, assistant_messages: int) -> ScriptedReply:
        """The reply to a request that already contains so many assistant messages."""
        return self.replies[assistant_messages] if assistant_messages < len(self.replies) else _END_OF_SCRIPT


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    content: str | list[dict[str, object]] | None = None
    stop_reason: str | None = None
    fault: str | None = None


def load_script(path: Path) -> Script:
    try:
        with path.open("rb") as file:
            text = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"script {str(path)!r} cannot be read: {error.strerror}; choose another file") from error
    if len(text) > SCRIPT_BYTES_MAX:
        raise UserError(f"script {str(path)!r} has more than {SCRIPT_BYTES_MAX} bytes; shorten it")
    return parse_script(text, name=str(path))


def parse_script(text: str | bytes, *, name: str = "script") -> Script:
    """A line with only a fault is an attempt that fails before the reply of the next line."""
    lines = (text.encode(errors="replace") if isinstance(text, str) else text).splitlines()
    replies: list[ScriptedReply] = []
    pending: list[Fault] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content, stop_reason, fault = _parse_line(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, UserError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            if "unknown field" in reason:
                reason += f"; known fields: {', '.join(_Line.__struct_fields__)}"
            raise UserError(f"line {number} of {name!r}: {reason}") from error
        pending += [fault] if fault else []
        if content is not None:
            replies.append(ScriptedReply(content, stop_reason, tuple(pending)))
            pending = []
    if pending:
        replies.append(ScriptedReply(None, faults=tuple(pending)))
    return Script(tuple(replies))


def _parse_line(line: bytes) -> tuple[tuple[Block, ...] | None, StopReason | None, Fault | None]:
    parsed = msgspec.json.decode(line, type=_Line)
    if parsed.content is None and parsed.fault is None:
        raise UserError("it has neither content nor fault; add one of them")
    stop_reason = next((reason for reason in _STOP_REASONS if reason == parsed.stop_reason), None)
    if parsed.stop_reason is not None and stop_reason is None:
        raise UserError(f"unknown stop_reason {parsed.stop_reason[:60]!r}; known: {', '.join(_STOP_REASONS)}")
    content = None if parsed.content is None else _parse_content(parsed.content)
    return content, stop_reason, parse_fault(parsed.fault) if parsed.fault is not None else None


def _parse_content(content: str | list[dict[str, object]]) -> tuple[Block, ...]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = tuple(_parse_block(block) for block in content)
    if not blocks or any(isinstance(block, Text) and not block.text.strip() for block in blocks):
        raise UserError("content is empty; the provider would refuse it in the next request")
    return blocks


def _parse_block(block: dict[str, object]) -> Block:
    if block.get("type") == "tool_use":
        block = {"id": "", **block}
    return decode_anthropic_block(encode_json(block))[0]


ECHO_CHARS_MAX = 400
_ID_CHARS = 24


def build_reply_content(
    scripted: ScriptedReply, messages: Sequence[Message], *, prefix: str, call_id_prefix: str
) -> tuple[Block, ...]:
    """The scripted blocks, or an echo; generated call ids depend only on the conversation so far."""
    if scripted.content is None:
        return (Text(_echo(messages)),)
    blocks: list[Block] = []
    for index, block in enumerate(scripted.content):
        if isinstance(block, ToolUse) and not block.id:
            # Ids are derived from the conversation, so that a replayed session gets the same bytes.
            id = f"{call_id_prefix}{sha256_hex(f'{prefix}/{index}'.encode())[:_ID_CHARS]}"
            block = ToolUse(id, block.name, block.arguments_json)
        blocks.append(block)
    return tuple(blocks)


def choose_stop_reason(scripted: ScriptedReply, content: Sequence[Block]) -> StopReason:
    if scripted.stop_reason is not None:
        return scripted.stop_reason
    return "tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn"


def _echo(messages: Sequence[Message]) -> str:
    """An echo of the last text of the user."""
    blocks = (block for message in messages if message.role == "user" for block in message.content)
    texts = [block.text for block in blocks if isinstance(block, Text)]
    if not texts:
        return "Echo: nothing was said."
    text = texts[-1]
    return f"Echo: {text}" if len(text) <= ECHO_CHARS_MAX else f"Echo: {text[:ECHO_CHARS_MAX]}…"
