"""How the blocks of a passage become items of a request, and which blocks an item holds."""

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
"""What opens a piece that is a whole item: nothing can follow in it, and nothing must be closed behind it."""

WIRE_ROLES: dict[Role, str] = {"user": "user", "assistant": "assistant", "system": "developer"}
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

_TOLD_KINDS = frozenset(
    {"message", "mcp_approval_response", "item_reference", "additional_tools", "configuration_update"}
)


class ReadItem(msgspec.Struct, frozen=True):
    """`lifetimes` hold, for each block, that of its mark."""

    role: Role
    blocks: tuple[Block, ...]
    lifetimes: tuple[Ttl | None, ...]


def message_start(role: str) -> bytes:
    return b'{"type":"message","role":"%b","content":[' % role.encode()


def spell_passage(passage: Passage) -> Iterator[Piece]:
    """A piece a block. Parts that follow one another share a message; everything else is an item of its own."""
    start = message_start(WIRE_ROLES[passage.role])
    in_message = False
    for block in passage.content:
        match block:
            case ToolResult():
                opens, spelled, markable = _spell_result(block)
                in_message = False
            case RedactedThinking():
                continue
            case ToolUse() | Thinking():
                opens, spelled, markable = ALONE, _spell_item(block).removeprefix(ALONE), False
                in_message = False
            case Opaque(kind=kind, raw=raw) if is_item(passage.role, kind):
                opens, spelled, markable = ALONE, raw.strip().removeprefix(ALONE), False
                in_message = False
            case Text() | Image() | Opaque():
                opens = b"" if in_message else start
                spelled, markable = _spell_part(passage.role, block)
                in_message = True
        yield Piece(
            passage.layer,
            "messages",
            passage.stability,
            spelled,
            markable=markable,
            role=passage.role,
            ephemeral=passage.ephemeral,
            opens=opens,
        )


def _spell_item(block: ToolUse | Thinking) -> bytes:
    if isinstance(block, Thinking):
        return spell_reasoning(block)
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}' % (
        quoted(block.id),
        quoted(block.name),
        quoted(block.arguments_json),
    )


def _spell_result(result: ToolResult) -> tuple[bytes, bytes, bool]:
    """The last part is what the piece holds, because only a part takes a mark."""
    start = b'{"type":"function_call_output","call_id":%b,"output":' % quoted(result.tool_use_id)
    if not result.content:
        return ALONE, start.removeprefix(ALONE) + b'""}', False
    *before, last = result.content
    opens = start + b"[" + b"".join(spell_input(part) + b"," for part in before)
    return opens, spell_input(last), is_markable(last)


def _spell_part(role: Role, part: Text | Image | Opaque) -> tuple[bytes, bool]:
    if role != "assistant" or isinstance(part, Image):
        return spell_input(part), is_markable(part)
    return spell_output(part), False


def is_item(role: Role, kind: str) -> bool:
    """Whether a block that we do not know stands for itself, and not in a message of that role."""
    if role == "assistant":
        return kind not in OUTPUT_KINDS
    return kind in _TOLD_KINDS or kind.endswith("_output")


def read_item(raw: bytes) -> ReadItem:
    """Raises msgspec's errors; they never quote a value. An item that is not just what we know is kept whole."""
    members = take_apart(raw)
    kind = "message" if "type" not in members and "role" in members else read_string(members, "type")
    found: ReadItem | None = None
    match kind:
        case "message":
            found = _read_message(members)
        case "function_call":
            found = _read_call(members)
        case "function_call_output":
            found = _read_result(members)
        case "reasoning":
            thinking = read_reasoning(members)
            found = ReadItem("assistant", (thinking,), (None,)) if thinking and thinking.signature else None
        case _:
            pass
    if found is not None:
        return found
    role: Role = "user" if is_item("user", kind) else "assistant"
    if kind == "message":
        role = _read_role(members)
    return ReadItem(role, (Opaque(kind, raw),), (None,))


def _read_role(members: Mapping[str, bytes]) -> Role:
    role = read_string(members, "role")
    if role not in _ROLES:
        raise msgspec.ValidationError(f"the role must be one of {', '.join(_ROLES)} - at `$.role`")
    return _ROLES[role]


def _read_message(members: Mapping[str, bytes]) -> ReadItem | None:
    role = _read_role(members)
    if spoken_names(members, "id", "status", "content") != {"role"}:
        return None
    content = msgspec.json.decode(members.get("content", b"null"), type=str | tuple[msgspec.Raw, ...])
    if isinstance(content, str):
        return ReadItem(role, (Text(content),), (None,))
    if role == "assistant":
        said = tuple(read_output(bytes(part)) for part in content)
        blocks: tuple[Block, ...] = said
        lifetimes: tuple[Ttl | None, ...] = (None,) * len(said)
    else:
        parts = [read_input(bytes(part)) for part in content]
        blocks = tuple(part for part, _ in parts)
        lifetimes = tuple(ttl for _, ttl in parts)
    if any(isinstance(block, Opaque) and is_item(role, block.kind) for block in blocks):
        # Sent back alone, such a part would be taken for an item.
        return None
    return ReadItem(role, blocks, lifetimes)


def _read_call(members: Mapping[str, bytes]) -> ReadItem | None:
    if spoken_names(members, "id", "status") != {"call_id", "name", "arguments"}:
        return None
    arguments = read_arguments(read_string(members, "arguments"))
    call = ToolUse(read_string(members, "call_id"), read_string(members, "name"), arguments)
    return ReadItem("assistant", (call,), (None,))


def read_arguments(text: str) -> str:
    """A model that gives a call no arguments may write nothing at all."""
    return legal_arguments(text) if text.strip() else "{}"


def _read_result(members: Mapping[str, bytes]) -> ReadItem | None:
    """A mark inside the result counts for the result: a piece has one end, and this is the nearest."""
    if spoken_names(members, "id", "status") != {"call_id", "output"}:
        return None
    call_id = read_string(members, "call_id")
    output = msgspec.json.decode(members["output"], type=str | tuple[msgspec.Raw, ...])
    if isinstance(output, str):
        return ReadItem("user", (ToolResult(call_id, (Text(output),) if output else ()),), (None,))
    parts = [read_input(bytes(part)) for part in output]
    lifetime = next((ttl for _, ttl in reversed(parts) if ttl is not None), None)
    return ReadItem("user", (ToolResult(call_id, tuple(part for part, _ in parts)),), (lifetime,))
