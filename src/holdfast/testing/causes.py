"""Why did a block change between two requests? A guess by the bytes around the first that differs."""

import re
from collections import Counter

import msgspec

from holdfast.ledger.breaks import Moved
from holdfast.ledger.requests import SentRequest
from holdfast.ledger.volatility import volatile_at
from holdfast.runtime.worlds import ADVICE, Cause

TIMES = ("a date and time", "a time of day", "seconds since the epoch")
_CAUSES: dict[str, Cause] = {
    **dict.fromkeys((*TIMES, "a date", "words for now"), "clock"),
    **dict.fromkeys(("a UUID", "a hexadecimal id"), "random"),
    "an object's address": "object address",
}
_WORDS = re.compile(rb"[\w-]+")


def likely_cause(before: SentRequest, after: SentRequest, moved: Moved) -> str | None:
    """None where the bytes tell nothing."""
    if moved.path_after is None:
        return None
    looks = _looks(after, moved) or _looks(before, moved)
    if looks in _CAUSES:
        return _advised(_CAUSES[looks], looks)
    if looks is not None:
        return f"{looks} is in it"
    old, new = before.scroll.pieces[moved.block].data, after.scroll.pieces[moved.block].data
    if _same_value(old, new):
        return _advised("unsorted JSON keys")
    if _same_words(old, new) or _same_blocks(before, after, moved):
        return _advised("set order")
    return None


def is_time(before: SentRequest, after: SentRequest, moved: Moved) -> bool:
    """Whether what differs is a time of day, in both."""
    return moved.path_after is not None and all(_looks(one, moved) in TIMES for one in (before, after))


def _looks(request: SentRequest, moved: Moved) -> str | None:
    piece, link = request.scroll.pieces[moved.block], request.scroll.links[moved.block]
    return volatile_at(piece.data, max(0, moved.byte - (link.end - len(piece.data))))


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
