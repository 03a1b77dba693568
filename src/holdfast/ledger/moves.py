"""Finds the likely cause of a prefix change by comparing the first differing block before and after."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.moves import Move, MoveCause
from holdfast.canonical.pieces import Link, Piece, common_length
from holdfast.ledger.breaks import readable_diff, said_in
from holdfast.ledger.volatility import volatile_at

# Longer blocks are compared by their bytes only, without decoding or diffing: this runs before every changed request.
COMPARED_BYTES_MAX = 256 * 1024

_CLOCK = frozenset({"a date and time", "a date", "a time of day", "words for now", "seconds since the epoch"})
_IDS = frozenset({"a UUID", "a git hash", "a hexadecimal id", "an object's address"})

_DIGIT = re.compile(r"\d")
_UPPER = re.compile(r"[A-ZÀ-ÖØ-Þ]")
_LETTER = re.compile(r"[^\W\dX_]")


def move_of(before: Sequence[Piece], after: Sequence[Piece], at: Link) -> Move:
    """The change between two prompts, given their blocks from the first differing one on.

    `at` is the digest of that block in the second prompt. `before` is empty if those blocks are no longer known,
    `after` if the second prompt ends there.
    """
    if not after:
        section = before[0].place if before else "messages"
        return Move(at.end, section, "removed", "the prompt ends earlier than before")
    new = after[0]
    start = at.end - len(new.data)
    if not before:
        pattern = volatile_at(new.data, 0)
        return Move(at.start, new.place, *_cause_of_volatile(pattern))
    old = before[0]
    if (old.place, old.role, old.opens) != (new.place, new.role, new.opens):
        return Move(at.start, new.place, *_cause_of_other_block(before, after))
    shared = common_length(old.data, new.data)
    diff = tuple(map(masked, readable_diff(said_in(old), said_in(new)))) if _is_short(old, new) else ()
    return Move(start + shared, new.place, *_cause_of_edit(before, after, shared), diff)


def masked(line: str) -> str:
    """A diff line without its content: sign and punctuation stay, letters become x and digits 0."""
    sign, text = (line[:1], line[1:]) if line[:1] in ("+", "-", " ", "@") else ("", line)
    # Upper case first: `_LETTER` does not match X, so the mask preserves case.
    return sign + _DIGIT.sub("0", _LETTER.sub("x", _UPPER.sub("X", text)))


def _is_short(old: Piece, new: Piece) -> bool:
    return max(len(old.data), len(new.data)) <= COMPARED_BYTES_MAX


def _cause_of_other_block(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[MoveCause, str]:
    """The cause where the block is now of another kind."""
    old, new = before[0], after[0]
    if "tools" in (old.place, new.place):
        return _cause_of_tools(before, after)
    if old.place == "messages" and any(block.data == new.data for block in before[1:]):
        return "removed", "the block was removed, and the one after it took its place"
    return "text", f"{_describe_block(new)} replaced {_describe_block(old)}"


def _describe_block(block: Piece) -> str:
    return {"tools": "a tool", "system": "system text"}.get(
        block.place, f"a block of the {block.role or 'conversation'}"
    )


def _cause_of_edit(before: Sequence[Piece], after: Sequence[Piece], shared: int) -> tuple[MoveCause, str]:
    old, new = before[0], after[0]
    if new.place == "tools":
        return _cause_of_tools(before, after)
    if _is_short(old, new) and _same_members(old.data, new.data):
        return "order", "the same JSON members in another order"
    for data in (new.data, old.data):
        if (pattern := volatile_at(data, shared)) is not None:
            return _cause_of_volatile(pattern)
    if old.place == "messages" and any(block.data == new.data for block in before[1:]):
        return "removed", "the block was removed, and the one after it took its place"
    if _is_short(old, new) and _same_words(old, new):
        return "order", "the same words in another order"
    return "text", "the text changed"


def _cause_of_volatile(pattern: str | None) -> tuple[MoveCause, str]:
    if pattern is None:
        return "unknown", ""
    cause: MoveCause = "clock" if pattern in _CLOCK else "id" if pattern in _IDS else "path"
    return cause, f"it looks like {pattern}"


def _cause_of_tools(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[MoveCause, str]:
    old = [block.data for block in before if block.place == "tools"]
    new = [block.data for block in after if block.place == "tools"]
    if sorted(old) == sorted(new):
        return "order", "the same tools in another order"
    if old and new and tool_name(old[0]) == tool_name(new[0]) is not None:
        if _same_members(old[0], new[0]):
            return "order", "the JSON members of a tool in another order"
        return "tool schema", "the description or schema of a tool changed"
    removed, added = len(set(old) - set(new)), len(set(new) - set(old))
    return "tool list", f"tools new or changed: {added}, removed: {removed}"


def tool_name(data: bytes) -> str | None:
    value = _decode_json(data)
    inner = value.get("function", value) if isinstance(value, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def _same_members(old: bytes, new: bytes) -> bool:
    old_value, new_value = _decode_json(old), _decode_json(new)
    return old_value is not None and canonical_json(old_value) == canonical_json(new_value)


def _same_words(old: Piece, new: Piece) -> bool:
    words = [sorted(said_in(block).split()) for block in (old, new)]
    return words[0] == words[1]


def _decode_json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
