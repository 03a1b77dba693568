"""Guesses why a block changed between two requests, from the bytes around the first difference."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.ledger.cache.change_cause import classify_volatile_at, classify_volatile_within, parse_tool_name
from holdfast.ledger.cache.prefix_diff import PrefixDifference
from holdfast.ledger.requests.parse import ParsedRequest
from holdfast.runtime.doctor.perturbations import ADVICE, Cause
from holdfast.types.request_buffer import common_prefix_length

TIME_KINDS = ("a date and time", "a time of day", "seconds since the epoch")
_CAUSES: dict[str, Cause] = {
    **dict.fromkeys((*TIME_KINDS, "a date", "words for now"), "clock"),
    **dict.fromkeys(("a UUID", "a hexadecimal id"), "random"),
    "an object's address": "object address",
}
TOOLS_NAMED_MAX = 5
NAME_CHARS_MAX = 64
_WORDS = re.compile(rb"[\w-]+")


def guess_cause(before: ParsedRequest, after: ParsedRequest, moved: PrefixDifference) -> str | None:
    """The likely cause of the change, with advice; None if the bytes give no hint."""
    if moved.section == "tools" and (tool_cause := _tool_list_cause(before, after)):
        return tool_cause
    if moved.change == "changed":
        old, new = before.buffer.blocks[moved.block].data, after.buffer.blocks[moved.block].data
        # Volatile text explains most changes; the other guesses are tried only if there is none.
        kind = _volatile_kind(after, moved) or _volatile_kind(before, moved) or _inserted_kind(old, new)
        if kind in _CAUSES:
            return _with_advice(_CAUSES[kind], kind)
        if kind is not None:
            return f"it contains {kind}"
        if _same_value(old, new):
            return _with_advice("unsorted JSON keys")
        if _same_words(old, new) or _same_blocks(before, after, moved):
            return _with_advice("set order")
    if moved.section == "messages":
        return _history_cause(before, after, moved)
    return "tool schema: the description or schema of a tool changed" if moved.section == "tools" else None


def is_time_difference(before: ParsedRequest, after: ParsedRequest, moved: PrefixDifference) -> bool:
    """Whether the difference is a time of day in both requests."""
    return moved.change == "changed" and all(
        _volatile_kind(request, moved) in TIME_KINDS for request in (before, after)
    )


def _volatile_kind(request: ParsedRequest, moved: PrefixDifference) -> str | None:
    piece, link = request.buffer.blocks[moved.block], request.buffer.digests[moved.block]
    # moved.byte counts from the start of the prompt, link.end is where this block ends in it: their difference gives
    # the offset in the block. It is negative if the change is in the separator before the block.
    return classify_volatile_at(piece.data, max(0, moved.byte - (link.end - len(piece.data))))


def _inserted_kind(old: bytes, new: bytes) -> str | None:
    """The kind of volatile text that was inserted or removed between equal bytes on both sides."""
    start = common_prefix_length(old, new)
    end = common_prefix_length(old[start:][::-1], new[start:][::-1])
    return classify_volatile_within(new, start, len(new) - end) or classify_volatile_within(old, start, len(old) - end)


def _tool_list_cause(before: ParsedRequest, after: ParsedRequest) -> str | None:
    """Names the tools that were added or removed."""
    old, new = (
        [parse_tool_name(piece.data) or "?" for piece in request.buffer.blocks if piece.section == "tools"]
        for request in (before, after)
    )
    differences = [
        f"{_list_names(names)} {word}"
        for names, word in (_names_only_in(new, old, "added"), _names_only_in(old, new, "removed"))
        if names
    ]
    if not differences:
        return None
    return f"tool list: {', '.join(differences)}; declare all tools in the first call and do not change them"


def _names_only_in(names: Sequence[str], others: Sequence[str], word: str) -> tuple[list[str], str]:
    missing = sorted(set(names) - set(others))
    return missing, f"{'was' if len(missing) == 1 else 'were'} {word}"


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - TOOLS_NAMED_MAX} more" if len(names) > TOOLS_NAMED_MAX else ""
    return ", ".join(name[:NAME_CHARS_MAX] for name in names[:TOOLS_NAMED_MAX]) + more


def _history_cause(before: ParsedRequest, after: ParsedRequest, moved: PrefixDifference) -> str:
    followers = before.buffer.blocks[moved.block + 1 :]
    if moved.change == "removed":
        return "history: messages at the end were removed; only append to what was sent"
    new = after.buffer.blocks[moved.block]
    # If the block now in this position came later before, the blocks between were removed.
    if any((piece.role, piece.data) == (new.role, new.data) for piece in followers):
        return "history: older messages were removed here; compact rarely, and remove much at a time"
    return "history: a message that was already sent has changed; only append to what was sent"


def _with_advice(cause: Cause, kind: str = "") -> str:
    return f"{cause}{f' ({kind})' if kind else ''}: {ADVICE[cause]}"


def _same_value(old: bytes, new: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _same_words(old: bytes, new: bytes) -> bool:
    return Counter(_WORDS.findall(old)) == Counter(_WORDS.findall(new))


def _same_blocks(before: ParsedRequest, after: ParsedRequest, moved: PrefixDifference) -> bool:
    """Whether the section (for example the tools) holds the same blocks in another order."""
    old, new = (
        Counter(piece.data for piece in request.buffer.blocks if piece.section == moved.section)
        for request in (before, after)
    )
    return moved.section != "messages" and old == new
