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


def guess_cause(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> str | None:
    """The likely cause of the change, with advice; None if the bytes give no hint."""
    if difference.section == "tools" and (tool_cause := _tool_list_cause(before, after)):
        return tool_cause
    if difference.change == "changed":
        old, new = before.buffer.blocks[difference.block].data, after.buffer.blocks[difference.block].data
        # Volatile text explains most changes; the other guesses are tried only if there is none.
        kind = _volatile_kind(after, difference) or _volatile_kind(before, difference) or _inserted_kind(old, new)
        if kind in _CAUSES:
            return _with_advice(_CAUSES[kind], kind)
        if kind is not None:
            return f"it contains {kind}"
        if _same_value(old, new):
            return _with_advice("unsorted JSON keys")
        if _same_words(old, new) or _same_blocks(before, after, difference):
            return _with_advice("set order")
    if difference.section == "messages":
        return _history_cause(before, after, difference)
    return "tool schema: the description or schema of a tool changed" if difference.section == "tools" else None


def is_time_difference(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> bool:
    """Whether the difference is a time of day in both requests."""
    return difference.change == "changed" and all(
        _volatile_kind(request, difference) in TIME_KINDS for request in (before, after)
    )


def _volatile_kind(request: ParsedRequest, difference: PrefixDifference) -> str | None:
    data, block_end = request.buffer.blocks[difference.block].data, request.buffer.digests[difference.block].end
    # difference.byte and block_end count from the start of the prompt, and the block starts at block_end - len(data).
    # The offset in the block is negative if the change is in the separator before it.
    return classify_volatile_at(data, max(0, difference.byte - (block_end - len(data))))


def _inserted_kind(old: bytes, new: bytes) -> str | None:
    """The kind of volatile text that was inserted or removed between equal bytes on both sides."""
    start = common_prefix_length(old, new)
    end = common_prefix_length(old[start:][::-1], new[start:][::-1])
    return classify_volatile_within(new, start, len(new) - end) or classify_volatile_within(old, start, len(old) - end)


def _tool_list_cause(before: ParsedRequest, after: ParsedRequest) -> str | None:
    """Names the tools that were added or removed."""
    old, new = (
        [parse_tool_name(block.data) or "?" for block in request.buffer.blocks if block.section == "tools"]
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


def _history_cause(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> str:
    followers = before.buffer.blocks[difference.block + 1 :]
    if difference.change == "removed":
        return "history: messages at the end were removed; only append to what was sent"
    new = after.buffer.blocks[difference.block]
    # If the block now in this position came later before, the blocks between were removed.
    if any((block.role, block.data) == (new.role, new.data) for block in followers):
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


def _same_blocks(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> bool:
    """Whether the section (for example the tools) holds the same blocks in another order."""
    old, new = (
        Counter(block.data for block in request.buffer.blocks if block.section == difference.section)
        for request in (before, after)
    )
    return difference.section != "messages" and old == new
