"""Encodes a prompt for Chat Completions: tools, then messages, the first of which is the system prompt."""

from collections.abc import Iterator

from holdfast.canonical.blocks import Image, Opaque, RedactedThinking, Text, Thinking, ToolResult, ToolUse
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Passage, Segment, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import UserError
from holdfast.providers.members import quoted, spliced
from holdfast.providers.openai_chat.flavour import Flavour
from holdfast.providers.openai_chat.kinds import CALL, MESSAGE, REASONING
from holdfast.providers.openai_chat.lowering import lower
from holdfast.providers.openai_chat.parts import is_markable, spell_part
from holdfast.providers.openai_chat.reasoning import MEMBER, spell_detail
from holdfast.providers.places import check_order

_MessageBlock = Text | Image | ToolUse | Thinking | RedactedThinking | Opaque

_SYSTEM_START = b'{"role":"system","content":['

# Sent before a conversation that starts with a system message, which would otherwise be taken for the system prompt.
NO_SYSTEM = b'{"role":"system","content":""}'


def spell_segment(segment: Segment, flavour: Flavour) -> tuple[Piece, ...]:
    """One encoded block per tool, system text or message block; parts of content accept breakpoints."""
    tools = (
        Piece(segment.name, "tools", segment.stability, spell_tool(tool), markable=False) for tool in segment.tools
    )
    system = (
        Piece(segment.name, "system", segment.stability, spell_part(text), markable=is_markable(text, flavour))
        for text in segment.system
    )
    lowered = (lower(entry, flavour) for entry in segment.passages)
    messages = (block for entry in lowered if entry for block in _encode_entry(entry, flavour))
    return (*tools, *system, *messages)


def spell_tool(tool: ToolSpec) -> bytes:
    if tool.wire_json is not None:
        return spliced(tool.wire_json.strip())
    return b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )


def _encode_entry(entry: Passage, flavour: Flavour) -> Iterator[Piece]:
    """Of a lowered entry: one message per tool result, and one per run of other blocks."""
    container: bytes | None = None
    for block in entry.content:
        if isinstance(block, ToolResult):
            yield _encoded_block(entry, *_encode_result(block, flavour))
            container = None
            continue
        member_start, data, accepts_breakpoint = _encode_block(block, flavour)
        start = b'{"role":"%b",' % entry.role.encode() if container is None else b""
        yield _encoded_block(
            entry, start + (member_start if member_start != container else b""), data, accepts_breakpoint
        )
        container = member_start


def _encoded_block(entry: Passage, container_start: bytes, data: bytes, accepts_breakpoint: bool) -> Piece:
    return Piece(
        entry.layer,
        "messages",
        entry.stability,
        data,
        markable=accepts_breakpoint,
        role=entry.role,
        ephemeral=entry.ephemeral,
        opens=container_start,
    )


def _encode_result(result: ToolResult, flavour: Flavour) -> tuple[bytes, bytes, bool]:
    """A breakpoint goes on the last part, so the parts before it belong to the bytes that start the message."""
    *earlier, last = result.content
    container_start = b'{"role":"tool","tool_call_id":%b,"content":[%b' % (
        quoted(result.tool_use_id),
        b"".join(spell_part(part) + b"," for part in earlier),
    )
    return container_start, spell_part(last), is_markable(last, flavour)


def _encode_block(block: _MessageBlock, flavour: Flavour) -> tuple[bytes, bytes, bool]:
    """The start of the member that the block is in, the block, and whether it accepts a breakpoint."""
    match block:
        case Opaque(kind=kind, raw=raw) if kind.startswith(MESSAGE):
            return b"", quoted(kind.removeprefix(MESSAGE)) + b":" + raw, False
        case Thinking() | RedactedThinking():
            return b'"%b":[' % MEMBER.encode(), spell_detail(block), False
        case Opaque(kind=kind, raw=raw) if kind.startswith(REASONING):
            return b'"%b":[' % MEMBER.encode(), raw, False
        case Opaque(kind=kind, raw=raw) if kind.startswith(CALL):
            return b'"tool_calls":[', raw, False
        case ToolUse():
            return b'"tool_calls":[', spell_call(block), False
        case Text() | Image() | Opaque():
            return b'"content":[', spell_part(block), is_markable(block, flavour)


def spell_call(call: ToolUse) -> bytes:
    return b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (
        quoted(call.id),
        quoted(call.name),
        quoted(call.arguments_json),
    )


def lead(before: Piece | None, block: Piece) -> bytes:
    if before is not None and before.place == block.place:
        return _between(before, block) + block.opens
    check_order(before, block)
    if before is not None and before.place == "system":
        return b"]}," + block.opens
    end = b"" if before is None else b"]"
    if block.place == "tools":
        return b',"tools":['
    if block.place == "system":
        return end + b',"messages":[' + _SYSTEM_START
    return end + b',"messages":[' + (NO_SYSTEM + b"," if block.role == "system" else b"") + block.opens


def _between(before: Piece, block: Piece) -> bytes:
    """A block starts a message, or an array in one, or continues where the previous one is."""
    if block.opens.startswith(b"{"):
        # A new message, even after one of the same role: GPT-5.6 and later look up prefixes at message ends.
        return _end_of_member(before) + b"},"
    if block.opens:
        return _end_of_member(before) + b","
    return b","


def _end_of_member(block: Piece) -> bytes:
    return b"" if _is_member(block) else b"]"


def _is_member(block: Piece) -> bool:
    """Whether the block is a member of the message itself, name included, and not an object in one of its arrays."""
    return block.data.startswith(b'"')


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"messages":[]}'
    if last.place == "tools":
        return b'],"messages":[]}'
    return _end_of_member(last) + b"}]}"


def mark(ttl: Ttl, flavour: Flavour) -> bytes:
    if ttl not in flavour.marks:
        raise UserError(f"{flavour.vendor}'s cache TTL is {' or '.join(flavour.marks)}, not {ttl}")
    return b',"%b":%b' % (flavour.mark_name.encode(), flavour.marks[ttl])
