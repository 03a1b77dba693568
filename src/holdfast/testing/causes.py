"""Why did a block change between two requests? A guess by the bytes around the first that differs."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.canonical.pieces import common_length
from holdfast.ledger.breaks import Moved
from holdfast.ledger.moves import tool_name
from holdfast.ledger.requests import SentRequest
from holdfast.ledger.volatility import volatile_at, volatile_within
from holdfast.runtime.worlds import ADVICE, Cause

TIMES = ("a date and time", "a time of day", "seconds since the epoch")
_CAUSES: dict[str, Cause] = {
    **dict.fromkeys((*TIMES, "a date", "words for now"), "clock"),
    **dict.fromkeys(("a UUID", "a hexadecimal id"), "random"),
    "an object's address": "object address",
}
TOOLS_NAMED_MAX = 5
NAME_CHARS_MAX = 64
_WORDS = re.compile(rb"[\w-]+")


def likely_cause(before: SentRequest, after: SentRequest, moved: Moved) -> str | None:
    """None where the bytes tell nothing."""
    if moved.place == "tools" and (listed := _tool_list(before, after)):
        return listed
    if moved.change == "changed":
        old, new = before.scroll.pieces[moved.block].data, after.scroll.pieces[moved.block].data
        looks = _looks(after, moved) or _looks(before, moved) or _came_or_went(old, new)
        if looks in _CAUSES:
            return _advised(_CAUSES[looks], looks)
        if looks is not None:
            return f"{looks} is in it"
        if _same_value(old, new):
            return _advised("unsorted JSON keys")
        if _same_words(old, new) or _same_blocks(before, after, moved):
            return _advised("set order")
    if moved.place == "messages":
        return _history(before, after, moved)
    return "tool schema: a tool has another description or schema" if moved.place == "tools" else None


def is_time(before: SentRequest, after: SentRequest, moved: Moved) -> bool:
    """Whether what differs is a time of day, in both."""
    return moved.change == "changed" and all(_looks(one, moved) in TIMES for one in (before, after))


def _looks(request: SentRequest, moved: Moved) -> str | None:
    piece, link = request.scroll.pieces[moved.block], request.scroll.links[moved.block]
    return volatile_at(piece.data, max(0, moved.byte - (link.end - len(piece.data))))


def _came_or_went(old: bytes, new: bytes) -> str | None:
    """What was put in, or taken out, between bytes that are the same on both sides."""
    start = common_length(old, new)
    end = common_length(old[start:][::-1], new[start:][::-1])
    return volatile_within(new, start, len(new) - end) or volatile_within(old, start, len(old) - end)


def _tool_list(before: SentRequest, after: SentRequest) -> str | None:
    """Which tools have come or gone, by name."""
    old, new = (
        [tool_name(piece.data) or "?" for piece in request.scroll.pieces if piece.place == "tools"]
        for request in (before, after)
    )
    told = [f"{_listed(names)} {word}" for names, word in (_only(new, old, "new"), _only(old, new, "gone")) if names]
    return f"tool list: {', '.join(told)}; give all tools with the first call, and keep them" if told else None


def _only(names: Sequence[str], others: Sequence[str], word: str) -> tuple[list[str], str]:
    found = sorted(set(names) - set(others))
    return found, f"{'is' if len(found) == 1 else 'are'} {word}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - TOOLS_NAMED_MAX} more" if len(names) > TOOLS_NAMED_MAX else ""
    return ", ".join(name[:NAME_CHARS_MAX] for name in names[:TOOLS_NAMED_MAX]) + more


def _history(before: SentRequest, after: SentRequest, moved: Moved) -> str:
    earlier = before.scroll.pieces[moved.block + 1 :]
    if moved.change == "removed":
        return "history: it ends where more had been sent; append to what was sent"
    new = after.scroll.pieces[moved.block]
    if any((piece.role, piece.data) == (new.role, new.data) for piece in earlier):
        return "history: what was sent here is gone, and what followed stands here; shorten it seldom, and by much"
    return "history: what was sent here is other text now; append to what was sent, and leave it as it is"


def _advised(cause: Cause, looks: str = "") -> str:
    return f"{cause}{f' ({looks})' if looks else ''}: {ADVICE[cause]}"


def _same_value(old: bytes, new: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _same_words(old: bytes, new: bytes) -> bool:
    return Counter(_WORDS.findall(old)) == Counter(_WORDS.findall(new))


def _same_blocks(before: SentRequest, after: SentRequest, moved: Moved) -> bool:
    """Whether the place, the tools for example, holds the same blocks in another order."""
    old, new = (
        Counter(piece.data for piece in request.scroll.pieces if piece.place == moved.place)
        for request in (before, after)
    )
    return moved.place != "messages" and old == new
