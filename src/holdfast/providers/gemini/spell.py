"""Encodes a prompt for Gemini: tools, then the system instruction, then contents."""

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Passage, Place, Segment
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import OrderError
from holdfast.providers.gemini.lower import lower
from holdfast.providers.gemini.parts import spell_parts
from holdfast.providers.members import quoted, spliced

FUNCTIONS = b'{"functionDeclarations":['
"""Starts an element of `tools` with function declarations; every other element is a tool that Gemini defines."""

_ORDER: tuple[Place, ...] = ("tools", "system", "messages")
_STARTS: dict[Place, bytes] = {
    "tools": b',"tools":[',
    "system": b',"systemInstruction":{"parts":[',
    "messages": b',"contents":[',
}
_ROLES = {"user": b"user", "assistant": b"model"}


def spell_segment(segment: Segment) -> tuple[Piece, ...]:
    """One encoded block per tool, system text or part; Gemini has no cache breakpoints."""
    tools = (_encode_tool(segment, tool) for tool in segment.tools)
    system = (
        Piece(segment.name, "system", segment.stability, b'{"text":%b}' % quoted(text.text), markable=False)
        for text in segment.system
    )
    lowered = (lower(entry) for entry in segment.passages)
    messages = (block for entry in lowered if entry is not None for block in _encode_entry(entry))
    return (*tools, *system, *messages)


def _encode_tool(segment: Segment, tool: ToolSpec) -> Piece:
    if tool.wire_json is not None:
        return Piece(segment.name, "tools", segment.stability, spliced(tool.wire_json.strip()), markable=False)
    declaration = b'{"name":%b,"description":%b,"parametersJsonSchema":%b}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )
    return Piece(segment.name, "tools", segment.stability, declaration, markable=False, opens=FUNCTIONS)


def _encode_entry(entry: Passage) -> tuple[Piece, ...]:
    """Every entry is a content of its own, even after one of the same role."""
    start = b'{"role":"%b","parts":[' % _ROLES[entry.role]
    return tuple(
        Piece(
            entry.layer,
            "messages",
            entry.stability,
            part,
            markable=False,
            role=entry.role,
            ephemeral=entry.ephemeral,
            opens=b"" if index else start,
        )
        for index, part in enumerate(spell_parts(entry.content))
    )


def lead(before: Piece | None, block: Piece) -> bytes:
    """Adjacent function declarations share an element of `tools`."""
    if before is None:
        return _STARTS[block.place] + (block.opens or _opened(block))
    if before.place != block.place:
        if _ORDER.index(before.place) > _ORDER.index(block.place):
            raise OrderError(
                f"layer {block.layer!r} ({block.place}) comes after layer {before.layer!r} ({before.place}); "
                f"the order is {', '.join(_ORDER)}"
            )
        return _end(before) + _STARTS[block.place] + (block.opens or _opened(block))
    if block.place == "messages":
        return b"]}," + block.opens if block.opens else b","
    if before.opens == block.opens:
        return b","
    return (b"]}," if before.opens else b",") + block.opens


def _opened(block: Piece) -> bytes:
    """The start of a content for a part that continues one whose start is in an explicit cache."""
    return b"" if block.role is None else b'{"role":"%b","parts":[' % _ROLES[block.role]


def _end(last: Piece) -> bytes:
    """The bytes that close the section of the last block."""
    match last.place:
        case "tools":
            return b"]}]" if last.opens else b"]"
        case "system":
            return b"]}"
        case "messages":
            return b"]}]"


def close(last: Piece | None) -> bytes:
    if last is None:
        return b',"contents":[]}'
    return _end(last) + (b"}" if last.place == "messages" else b',"contents":[]}')
