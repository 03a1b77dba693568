"""How Gemini spells a prompt: tools, then the system instruction, then contents."""

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Passage, Place, Segment
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import OrderError
from holdfast.providers.gemini.lower import lower
from holdfast.providers.gemini.parts import spell_parts
from holdfast.providers.members import quoted, spliced

FUNCTIONS = b'{"functionDeclarations":['
"""Starts an element of `tools` that holds declarations; every other element is a tool of the provider's own."""

_ORDER: tuple[Place, ...] = ("tools", "system", "messages")
_STARTS: dict[Place, bytes] = {
    "tools": b',"tools":[',
    "system": b',"systemInstruction":{"parts":[',
    "messages": b',"contents":[',
}
_ROLES = {"user": b"user", "assistant": b"model"}


def spell_segment(segment: Segment) -> tuple[Piece, ...]:
    """One piece per tool, system text or part; none takes a mark."""
    tools = (_spell_tool(segment, tool) for tool in segment.tools)
    system = (
        Piece(segment.name, "system", segment.stability, b'{"text":%b}' % quoted(text.text), markable=False)
        for text in segment.system
    )
    lowered = (lower(passage) for passage in segment.passages)
    messages = (piece for passage in lowered if passage is not None for piece in _spell_passage(passage))
    return (*tools, *system, *messages)


def _spell_tool(segment: Segment, tool: ToolSpec) -> Piece:
    if tool.wire_json is not None:
        return Piece(segment.name, "tools", segment.stability, spliced(tool.wire_json.strip()), markable=False)
    declaration = b'{"name":%b,"description":%b,"parametersJsonSchema":%b}' % (
        quoted(tool.name),
        quoted(tool.description),
        spliced(tool.input_schema_json),
    )
    return Piece(segment.name, "tools", segment.stability, declaration, markable=False, opens=FUNCTIONS)


def _spell_passage(passage: Passage) -> tuple[Piece, ...]:
    """Every passage is a content of its own, also behind one of the same role."""
    start = b'{"role":"%b","parts":[' % _ROLES[passage.role]
    return tuple(
        Piece(
            passage.layer,
            "messages",
            passage.stability,
            part,
            markable=False,
            role=passage.role,
            ephemeral=passage.ephemeral,
            opens=b"" if index else start,
        )
        for index, part in enumerate(spell_parts(passage.content))
    )


def lead(before: Piece | None, piece: Piece) -> bytes:
    """Declarations that stand next to one another share an element of `tools`."""
    if before is None:
        return _STARTS[piece.place] + (piece.opens or _opened(piece))
    if before.place != piece.place:
        if _ORDER.index(before.place) > _ORDER.index(piece.place):
            raise OrderError(
                f"layer {piece.layer!r} ({piece.place}) stands behind layer {before.layer!r} ({before.place}); "
                f"the order is {', '.join(_ORDER)}"
            )
        return _end(before) + _STARTS[piece.place] + (piece.opens or _opened(piece))
    if piece.place == "messages":
        return b"]}," + piece.opens if piece.opens else b","
    if before.opens == piece.opens:
        return b","
    return (b"]}," if before.opens else b",") + piece.opens


def _opened(piece: Piece) -> bytes:
    """What a part that goes on in a content needs in front where the content's start is left out."""
    return b"" if piece.role is None else b'{"role":"%b","parts":[' % _ROLES[piece.role]


def _end(last: Piece) -> bytes:
    """Closes the place of the last piece."""
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
