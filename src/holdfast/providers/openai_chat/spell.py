"""How chat completions spell a prompt: tools, then messages, the first of which is the system's."""

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

_Said = Text | Image | ToolUse | Thinking | RedactedThinking | Opaque

_SYSTEM_START = b'{"role":"system","content":['

# In front of a conversation that begins with a passage of the system's own, which would pass for the prompt's.
NO_SYSTEM = b'{"role":"system","content":""}'


def spell_segment(segment: Segment, flavour: Flavour) -> tuple[Piece, ...]:
    """One piece per tool, system text or message block; each part of a message's content can take a mark."""
    tools = (
        Piece(segment.name, "tools", segment.stability, spell_tool(tool), markable=False) for tool in segment.tools
    )
    system = (
        Piece(segment.name, "system", segment.stability, spell_part(text), markable=is_markable(text, flavour))
        for text in segment.system
    )
    lowered = (lower(passage, flavour) for passage in segment.passages)
    messages = (piece for passage in lowered if passage for piece in _spell_passage(passage, flavour))
    return (*tools, *system, *messages)


def spell_tool(tool: ToolSpec) -> bytes:
    if tool.wire_json is not None:
        return spliced(tool.wire_json.strip())
    return b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )


def _spell_passage(passage: Passage, flavour: Flavour) -> Iterator[Piece]:
    """Of a lowered passage: a message per result, and one per run of other blocks."""
    container: bytes | None = None
    for block in passage.content:
        if isinstance(block, ToolResult):
            yield _piece(passage, *_spell_result(block, flavour))
            container = None
            continue
        inside, data, markable = _spell_block(block, flavour)
        start = b'{"role":"%b",' % passage.role.encode() if container is None else b""
        yield _piece(passage, start + (inside if inside != container else b""), data, markable)
        container = inside


def _piece(passage: Passage, opens: bytes, data: bytes, markable: bool) -> Piece:
    return Piece(
        passage.layer,
        "messages",
        passage.stability,
        data,
        markable=markable,
        role=passage.role,
        ephemeral=passage.ephemeral,
        opens=opens,
    )


def _spell_result(result: ToolResult, flavour: Flavour) -> tuple[bytes, bytes, bool]:
    """The mark goes to the last part; the parts in front of it are in what opens the message."""
    *earlier, last = result.content
    opens = b'{"role":"tool","tool_call_id":%b,"content":[%b' % (
        quoted(result.tool_use_id),
        b"".join(spell_part(part) + b"," for part in earlier),
    )
    return opens, spell_part(last), is_markable(last, flavour)


def _spell_block(block: _Said, flavour: Flavour) -> tuple[bytes, bytes, bool]:
    """The start of the member that the block stands in, the block, and whether it takes a mark."""
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


def lead(before: Piece | None, piece: Piece) -> bytes:
    if before is not None and before.place == piece.place:
        return _between(before, piece) + piece.opens
    check_order(before, piece)
    if before is not None and before.place == "system":
        return b"]}," + piece.opens
    end = b"" if before is None else b"]"
    if piece.place == "tools":
        return b',"tools":['
    if piece.place == "system":
        return end + b',"messages":[' + _SYSTEM_START
    return end + b',"messages":[' + (NO_SYSTEM + b"," if piece.role == "system" else b"") + piece.opens


def _between(before: Piece, piece: Piece) -> bytes:
    """A piece opens a message, or an array in one, or goes on where the one before it stands."""
    if piece.opens.startswith(b"{"):
        return _end_of_member(before) + b"},"
    if piece.opens:
        return _end_of_member(before) + b","
    return b","


def _end_of_member(piece: Piece) -> bytes:
    return b"" if _is_member(piece) else b"]"


def _is_member(piece: Piece) -> bool:
    """Whether the piece is a member of the message itself, name included, and not an object in one of its arrays."""
    return piece.data.startswith(b'"')


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"messages":[]}'
    if last.place == "tools":
        return b'],"messages":[]}'
    return _end_of_member(last) + b"}]}"


def mark(ttl: Ttl, flavour: Flavour) -> bytes:
    if ttl not in flavour.marks:
        raise UserError(f"{flavour.vendor} keeps a prefix for {' or '.join(flavour.marks)}, not for {ttl}")
    return b',"%b":%b' % (flavour.mark_name.encode(), flavour.marks[ttl])
