"""Encodes a prompt for Chat Completions: tools, then messages, the first of which is the system prompt."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from holdfast.errors import UserError
from holdfast.providers.adapter import encode_stable_blocks
from holdfast.providers.json_splice import encode_string
from holdfast.providers.openai_chat.parameters import ChatVariant
from holdfast.providers.openai_chat.parts import (
    CALL_KIND,
    MESSAGE_KIND,
    REASONING_DETAILS,
    REASONING_KIND,
    accepts_chat_breakpoint,
    encode_chat_part,
    encode_reasoning_detail,
)
from holdfast.providers.openai_common import ERROR_TEXT, IMAGE_TEXT, normalize_image
from holdfast.providers.wire_request import check_section_order, encode_tool_spec
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Role, Text, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, Segment, Ttl, fit_call_ids
from holdfast.types.request_buffer import EncodedBlock, make_message_block

_MessageBlock = Text | Image | ToolUse | Thinking | RedactedThinking | Opaque
_TOOL = b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}'
_SYSTEM_START = b'{"role":"system","content":['

# Sent before a conversation that starts with a system message, which would otherwise be taken for the system prompt.
EMPTY_SYSTEM_MESSAGE = b'{"role":"system","content":""}'
CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")

# The order of a message's members; encoding must not depend on the order in which blocks arrived.
_MEMBERS, _REASONING, _CONTENT, _CALLS = range(4)


def encode_chat_segment(segment: Segment, variant: ChatVariant) -> tuple[EncodedBlock, ...]:
    """One encoded block per tool, system text or message block; parts of content accept breakpoints."""
    stable = encode_stable_blocks(
        segment,
        lambda tool: encode_tool_spec(tool, _TOOL),
        encode_chat_part,
        accepts_breakpoint=lambda text: accepts_chat_breakpoint(text, variant),
    )
    lowered = (lower_chat_entry(entry, variant) for entry in segment.entries)
    messages = (block for entry in lowered if entry for block in _encode_entry(entry, variant))
    return (*stable, *messages)


def _encode_entry(entry: HistoryEntry, variant: ChatVariant) -> Iterator[EncodedBlock]:
    """Of a lowered entry: one message per tool result, and one per run of other blocks."""
    container: bytes | None = None
    for block in entry.content:
        if isinstance(block, ToolResult):
            start, data, accepts = _encode_result(block, variant)
            container = None
        else:
            member_start, data, accepts = _encode_block(block, variant)
            start = b'{"role":"%b",' % entry.role.encode() if container is None else b""
            start += member_start if member_start != container else b""
            container = member_start
        yield make_message_block(entry, data, accepts_breakpoint=accepts, container_start=start)


def _encode_result(result: ToolResult, variant: ChatVariant) -> tuple[bytes, bytes, bool]:
    """A breakpoint goes on the last part, so the parts before it belong to the bytes that start the message."""
    *earlier, last = result.content
    parts = b"".join(encode_chat_part(part) + b"," for part in earlier)
    start = b'{"role":"tool","tool_call_id":%b,"content":[%b' % (encode_string(result.tool_use_id), parts)
    return start, encode_chat_part(last), accepts_chat_breakpoint(last, variant)


def _encode_block(block: _MessageBlock, variant: ChatVariant) -> tuple[bytes, bytes, bool]:
    """The start of the member that the block is in, the block, and whether it accepts a breakpoint."""
    match block:
        case Opaque(kind=kind, raw=raw) if kind.startswith(MESSAGE_KIND):
            return b"", encode_string(kind.removeprefix(MESSAGE_KIND)) + b":" + raw, False
        case Thinking() | RedactedThinking():
            return b'"%b":[' % REASONING_DETAILS.encode(), encode_reasoning_detail(block), False
        case Opaque(kind=kind, raw=raw) if kind.startswith(REASONING_KIND):
            return b'"%b":[' % REASONING_DETAILS.encode(), raw, False
        case Opaque(kind=kind, raw=raw) if kind.startswith(CALL_KIND):
            return b'"tool_calls":[', raw, False
        case ToolUse():
            return b'"tool_calls":[', encode_chat_call(block), False
        case Text() | Image() | Opaque():
            return b'"content":[', encode_chat_part(block), accepts_chat_breakpoint(block, variant)


def encode_chat_call(call: ToolUse) -> bytes:
    template = b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}'
    return template % tuple(map(encode_string, (call.id, call.name, call.arguments_json)))


def chat_separator(before: EncodedBlock | None, block: EncodedBlock) -> bytes:
    if before is not None and before.section == block.section:
        return _between(before, block) + block.container_start
    check_section_order(before, block)
    if before is not None and before.section == "system":
        return b"]}," + block.container_start
    end = b"" if before is None else b"]"
    if block.section == "tools":
        return b',"tools":['
    if block.section == "system":
        return end + b',"messages":[' + _SYSTEM_START
    empty_prompt = EMPTY_SYSTEM_MESSAGE + b"," if block.role == "system" else b""
    return end + b',"messages":[' + empty_prompt + block.container_start


def _between(before: EncodedBlock, block: EncodedBlock) -> bytes:
    """A block starts a message, or an array in one, or continues where the previous one is."""
    if block.container_start.startswith(b"{"):
        # A new message, even after one of the same role: GPT-5.6 and later look up prefixes at message ends.
        return _end_of_member(before) + b"},"
    return _end_of_member(before) + b"," if block.container_start else b","


def _end_of_member(block: EncodedBlock) -> bytes:
    # A block that is a member of the message itself starts with its name; any other is an object in an array.
    return b"" if block.data.startswith(b'"') else b"]"


def chat_suffix(last: EncodedBlock | None) -> bytes:
    if last is None:
        return b',"messages":[]}'
    if last.section == "tools":
        return b'],"messages":[]}'
    return _end_of_member(last) + b"}]}"


def encode_chat_breakpoint(ttl: Ttl, variant: ChatVariant) -> bytes:
    if ttl not in variant.breakpoints:
        raise UserError(f"{variant.vendor}'s cache TTL is {' or '.join(variant.breakpoints)}, not {ttl}")
    return b',"%b":%b' % (variant.breakpoint_name.encode(), variant.breakpoints[ttl])


def lower_chat_entry(entry: HistoryEntry, variant: ChatVariant) -> HistoryEntry | None:
    """Thinking is dropped if the API cannot carry it; images in results and assistant messages become text.

    The blocks of a message are sorted into the order in which it is encoded: reasoning, content, calls.
    """
    lowered = (_lower_block(block, entry.role, variant) for block in entry.content)
    blocks = tuple(block for block in lowered if block is not None)
    if not blocks:
        return None
    return fit_call_ids(msgspec.structs.replace(entry, content=tuple(_in_wire_order(blocks))), CALL_ID)


def _in_wire_order(blocks: Iterable[Block]) -> Iterable[Block]:
    """Results are messages of their own, so each run of blocks between them is sorted separately."""
    for _, run in groupby(blocks, key=lambda block: isinstance(block, ToolResult)):
        yield from sorted(run, key=member_position)


def member_position(block: Block) -> int:
    """The position of a block's member in an encoded message."""
    match block:
        case Thinking() | RedactedThinking():
            return _REASONING
        case ToolUse():
            return _CALLS
        case Opaque(kind=kind):
            positions = {MESSAGE_KIND: _MEMBERS, REASONING_KIND: _REASONING, CALL_KIND: _CALLS}
            return next((at for prefix, at in positions.items() if kind.startswith(prefix)), _CONTENT)
        case _:
            return _CONTENT


def is_reasoning_block(block: Block) -> bool:
    return member_position(block) == _REASONING


def is_call_block(block: Block) -> bool:
    return member_position(block) == _CALLS


def _lower_block(block: Block, role: Role, variant: ChatVariant) -> Block | None:
    """None for a block that a message of this role cannot have."""
    match block:
        case Image():
            return normalize_image(block) if role == "user" else IMAGE_TEXT
        case ToolResult():
            return _lower_result(block) if role == "user" else None
        case _:
            member = member_position(block)
    if member in (_REASONING, _CALLS) and role != "assistant":
        return None
    return None if member == _REASONING and not variant.carries_reasoning else block


def _lower_result(result: ToolResult) -> ToolResult:
    """A result holds text only, so that a failed call is marked by a leading error text."""
    content = tuple(IMAGE_TEXT if isinstance(part, Image) else part for part in result.content)
    if result.is_error and content[:1] != (ERROR_TEXT,):
        content = (ERROR_TEXT, *content)
    return ToolResult(result.tool_use_id, content or (Text(""),), content[:1] == (ERROR_TEXT,))
