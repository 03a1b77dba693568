"""What most likely moved a prefix: the first block that is another one, before and after, held side by side."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.moves import Move, MoveCause
from holdfast.canonical.pieces import Link, Piece, common_length
from holdfast.ledger.breaks import readable_diff, said_in
from holdfast.ledger.volatility import volatile_at

COMPARED_BYTES_MAX = 256 * 1024
"""Of longer blocks only the bytes are compared, and not what they mean."""

_CLOCK = frozenset({"a date and time", "a date", "a time of day", "words for now", "seconds since the epoch"})
_IDS = frozenset({"a UUID", "a git hash", "a hexadecimal id", "an object's address"})

_DIGIT = re.compile(r"\d")
_UPPER = re.compile(r"[A-ZÀ-ÖØ-Þ]")
_LETTER = re.compile(r"[^\W\dX_]")


def move_of(before: Sequence[Piece], after: Sequence[Piece], at: Link) -> Move:
    """`before` and `after` are what two prompts say from the first block on that differs, `at` its link in the second.

    `before` is empty where nobody knows it any more, `after` where the second prompt ends there.
    """
    if not after:
        place = before[0].place if before else "messages"
        return Move(at.end, place, "removed", "the prompt ends where more stood before")
    new = after[0]
    start = at.end - len(new.data)
    if not before:
        found = volatile_at(new.data, 0)
        return Move(at.start, new.place, *_looks_like(found))
    old = before[0]
    if (old.place, old.role, old.opens) != (new.place, new.role, new.opens):
        return Move(at.start, new.place, *_cause_between(before, after))
    shared = common_length(old.data, new.data)
    diff = tuple(map(masked, readable_diff(said_in(old), said_in(new)))) if _is_short(old, new) else ()
    return Move(start + shared, new.place, *_cause_within(before, after, shared), diff)


def masked(line: str) -> str:
    """A line of a diff that says nothing: its sign and its punctuation stay, letters and digits do not."""
    sign, said = (line[:1], line[1:]) if line[:1] in ("+", "-", " ", "@") else ("", line)
    return sign + _DIGIT.sub("0", _LETTER.sub("x", _UPPER.sub("X", said)))


def _is_short(old: Piece, new: Piece) -> bool:
    return max(len(old.data), len(new.data)) <= COMPARED_BYTES_MAX


def _cause_between(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[MoveCause, str]:
    """Where another kind of block stands now."""
    old, new = before[0], after[0]
    if "tools" in (old.place, new.place):
        return _cause_of_tools(before, after)
    if old.place == "messages" and any(piece.data == new.data for piece in before[1:]):
        return "removed", "what stood here before is gone, and what followed it stands here now"
    return "text", f"{_kind(new)} stands where {_kind(old)} stood"


def _kind(piece: Piece) -> str:
    return {"tools": "a tool", "system": "system text"}.get(
        piece.place, f"a block of the {piece.role or 'conversation'}"
    )


def _cause_within(before: Sequence[Piece], after: Sequence[Piece], shared: int) -> tuple[MoveCause, str]:
    old, new = before[0], after[0]
    if new.place == "tools":
        return _cause_of_tools(before, after)
    if _is_short(old, new) and _same_members(old.data, new.data):
        return "order", "the same members in another order"
    for said in (new.data, old.data):
        if (found := volatile_at(said, shared)) is not None:
            return _looks_like(found)
    if old.place == "messages" and any(piece.data == new.data for piece in before[1:]):
        return "removed", "what stood here before is gone, and what followed it stands here now"
    if _is_short(old, new) and _same_words(old, new):
        return "order", "the same words in another order"
    return "text", "other text"


def _looks_like(found: str | None) -> tuple[MoveCause, str]:
    if found is None:
        return "unknown", ""
    cause: MoveCause = "clock" if found in _CLOCK else "id" if found in _IDS else "path"
    return cause, f"it looks like {found}"


def _cause_of_tools(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[MoveCause, str]:
    old = [piece.data for piece in before if piece.place == "tools"]
    new = [piece.data for piece in after if piece.place == "tools"]
    if sorted(old) == sorted(new):
        return "order", "the same tools in another order"
    if old and new and tool_name(old[0]) == tool_name(new[0]) is not None:
        if _same_members(old[0], new[0]):
            return "order", "the members of a tool in another order"
        return "tool schema", "a tool of the same name has another description or schema"
    gone, come = len(set(old) - set(new)), len(set(new) - set(old))
    return "tool list", f"tools that are new or others: {come}, gone: {gone}"


def tool_name(data: bytes) -> str | None:
    value = _decoded(data)
    inner = value.get("function", value) if isinstance(value, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def _same_members(old: bytes, new: bytes) -> bool:
    one, two = _decoded(old), _decoded(new)
    return one is not None and canonical_json(one) == canonical_json(two)


def _same_words(old: Piece, new: Piece) -> bool:
    words = [sorted(said_in(piece).split()) for piece in (old, new)]
    return words[0] == words[1]


def _decoded(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
