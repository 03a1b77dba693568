"""Encodes history entries as input items of the Responses API, and decodes items."""

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.canonical.blocks import (
    Block,
    Image,
    Opaque,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Passage, Ttl
from holdfast.providers.arguments import legal_arguments
from holdfast.providers.members import quoted, read_string, take_apart
from holdfast.providers.openai_responses.parts import (
    OUTPUT_KINDS,
    is_markable,
    read_input,
    read_output,
    spell_input,
    spell_output,
    spoken_names,
)
from holdfast.providers.openai_responses.reasoning import read_reasoning, spell_reasoning

ALONE = b"{"
"""Starts a block that is a complete item: no other block continues it, and nothing has to be closed after it."""

WIRE_ROLES: dict[Role, str] = {"user": "user", "assistant": "assistant", "system": "developer"}
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

# Items that a caller sends. Any other unknown item is output of the model, unless it ends in `_output`.
_USER_ITEM_KINDS = frozenset(
    {"message", "mcp_approval_response", "item_reference", "additional_tools", "configuration_update"}
)


class ReadItem(msgspec.Struct, frozen=True):
    """`ttls` holds the TTL of each block's breakpoint, or None."""

    role: Role
    blocks: tuple[Block, ...]
    lifetimes: tuple[Ttl | None, ...]


def message_start(role: str) -> bytes:
    return b'{"type":"message","role":"%b","content":[' % role.encode()


def spell_passage(entry: Passage) -> Iterator[Piece]:
    """One encoded block per block. Adjacent parts share a message; everything else is an item of its own."""
    start = message_start(WIRE_ROLES[entry.role])
    in_message = False
    for block in entry.content:
        match block:
            case ToolResult():
                container_start, data, accepts_breakpoint = _encode_result(block)
                in_message = False
            case RedactedThinking():
                continue
            case ToolUse() | Thinking():
                container_start, data, accepts_breakpoint = ALONE, _encode_item(block).removeprefix(ALONE), False
                in_message = False
            case Opaque(kind=kind, raw=raw) if is_item(entry.role, kind):
                container_start, data, accepts_breakpoint = ALONE, raw.strip().removeprefix(ALONE), False
                in_message = False
            case Text() | Image() | Opaque():
                container_start = b"" if in_message else start
                data, accepts_breakpoint = _encode_part(entry.role, block)
                in_message = True
        yield Piece(
            entry.layer,
            "messages",
            entry.stability,
            data,
            markable=accepts_breakpoint,
            role=entry.role,
            ephemeral=entry.ephemeral,
            opens=container_start,
        )


def _encode_item(block: ToolUse | Thinking) -> bytes:
    if isinstance(block, Thinking):
        return spell_reasoning(block)
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}' % (
        quoted(block.id),
        quoted(block.name),
        quoted(block.arguments_json),
    )


def _encode_result(result: ToolResult) -> tuple[bytes, bytes, bool]:
    """The data is the last part, because only a part accepts a breakpoint."""
    start = b'{"type":"function_call_output","call_id":%b,"output":' % quoted(result.tool_use_id)
    if not result.content:
        return ALONE, start.removeprefix(ALONE) + b'""}', False
    *earlier, last = result.content
    container_start = start + b"[" + b"".join(spell_input(part) + b"," for part in earlier)
    return container_start, spell_input(last), is_markable(last)


def _encode_part(role: Role, part: Text | Image | Opaque) -> tuple[bytes, bool]:
    if role != "assistant" or isinstance(part, Image):
        return spell_input(part), is_markable(part)
    return spell_output(part), False


def is_item(role: Role, kind: str) -> bool:
    """Whether an opaque block is an item of its own and not a part of a message of that role."""
    if role == "assistant":
        return kind not in OUTPUT_KINDS
    return kind in _USER_ITEM_KINDS or kind.endswith("_output")


def read_item(raw: bytes) -> ReadItem:
    """Raises msgspec's errors, which never quote a value. An item with unknown fields is carried as its bytes."""
    members = take_apart(raw)
    kind = "message" if "type" not in members and "role" in members else read_string(members, "type")
    item: ReadItem | None = None
    match kind:
        case "message":
            item = _decode_message(members)
        case "function_call":
            item = _decode_call(members)
        case "function_call_output":
            item = _decode_result(members)
        case "reasoning":
            thinking = read_reasoning(members)
            item = ReadItem("assistant", (thinking,), (None,)) if thinking and thinking.signature else None
        case _:
            pass
    if item is not None:
        return item
    role: Role = "user" if is_item("user", kind) else "assistant"
    if kind == "message":
        role = _decode_role(members)
    return ReadItem(role, (Opaque(kind, raw),), (None,))


def _decode_role(members: Mapping[str, bytes]) -> Role:
    role = read_string(members, "role")
    if role not in _ROLES:
        raise msgspec.ValidationError(f"the role must be one of {', '.join(_ROLES)} - at `$.role`")
    return _ROLES[role]


def _decode_message(members: Mapping[str, bytes]) -> ReadItem | None:
    role = _decode_role(members)
    if spoken_names(members, "id", "status", "content") != {"role"}:
        return None
    content = msgspec.json.decode(members.get("content", b"null"), type=str | tuple[msgspec.Raw, ...])
    if isinstance(content, str):
        return ReadItem(role, (Text(content),), (None,))
    if role == "assistant":
        blocks: tuple[Block, ...] = tuple(read_output(bytes(part)) for part in content)
        ttls: tuple[Ttl | None, ...] = (None,) * len(blocks)
    else:
        parts = [read_input(bytes(part)) for part in content]
        blocks = tuple(part for part, _ in parts)
        ttls = tuple(ttl for _, ttl in parts)
    if any(isinstance(block, Opaque) and is_item(role, block.kind) for block in blocks):
        # Encoded on its own, such a part would become an item.
        return None
    return ReadItem(role, blocks, ttls)


def _decode_call(members: Mapping[str, bytes]) -> ReadItem | None:
    if spoken_names(members, "id", "status") != {"call_id", "name", "arguments"}:
        return None
    arguments = read_arguments(read_string(members, "arguments"))
    call = ToolUse(read_string(members, "call_id"), read_string(members, "name"), arguments)
    return ReadItem("assistant", (call,), (None,))


def read_arguments(text: str) -> str:
    """A model may write an empty text for a call without arguments."""
    return legal_arguments(text) if text.strip() else "{}"


def _decode_result(members: Mapping[str, bytes]) -> ReadItem | None:
    """A breakpoint inside the result is moved to its end, the nearest position an encoded block has."""
    if spoken_names(members, "id", "status") != {"call_id", "output"}:
        return None
    call_id = read_string(members, "call_id")
    output = msgspec.json.decode(members["output"], type=str | tuple[msgspec.Raw, ...])
    if isinstance(output, str):
        return ReadItem("user", (ToolResult(call_id, (Text(output),) if output else ()),), (None,))
    parts = [read_input(bytes(part)) for part in output]
    ttl = next((ttl for _, ttl in reversed(parts) if ttl is not None), None)
    return ReadItem("user", (ToolResult(call_id, tuple(part for part, _ in parts)),), (ttl,))
