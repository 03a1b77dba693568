"""Which strings early in a prompt look as if they were others in the next request."""

import re
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Place
from holdfast.catalog.rows import Price
from holdfast.ledger.requests import SentRequest, kept_by, readable_tokens, rewrite_usd

FOUND_PER_BLOCK_MAX = 5
LOOKED_AT_BYTES_MAX = 1024 * 1024
SHOWN_CHARS_MAX = 60
AROUND_BYTES_MAX = 256

_PATTERNS = {
    "a date and time": rb"\b20\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d(?::[0-5]\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?",
    "a date": rb"\b20\d\d-[01]\d-[0-3]\d\b",
    "a time of day": rb"\b[0-2]\d:[0-5]\d(?::[0-5]\d)?\b",
    "words for now": rb"(?i)\b(?:today is|today's date|current (?:date|time|datetime)|the time is|as of now)\b",
    "a UUID": rb"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "seconds since the epoch": rb"(?<![\w.])1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?(?!\w|\.\d)",
    "a git hash": rb"(?i)\b(?:[0-9a-f]{40}|(?<=commit )[0-9a-f]{7,12}|(?<=HEAD )[0-9a-f]{7,12})\b",
    "a hexadecimal id": rb"(?i)\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{16,64}\b",
    "an object's address": rb"\bat 0x[0-9a-f]{6,}\b",
    "a path of a temporary folder": rb"(?:/private)?/(?:tmp|var/folders|var/tmp)/[\w./-]+",
}
_VOLATILE = re.compile(
    b"|".join(
        b"(?P<p%d>%b)" % (index, pattern.removeprefix(b"(?i)")) for index, pattern in enumerate(_PATTERNS.values())
    ),
    re.IGNORECASE,
)
_NAMES = tuple(_PATTERNS)
_SEALED = re.compile(rb'"(?:data|signature|encrypted_content|thoughtSignature)":"[^"]*"')


class VolatileString(msgspec.Struct, frozen=True):
    """If it is another one in the next request, `rewritten_tokens` (estimated) are written again."""

    what: str
    path: str
    place: Place
    byte: int
    shown: str
    rewritten_tokens: int
    rewritten_usd: Decimal | None


def volatile_strings(request: SentRequest, price: Price | None) -> tuple[VolatileString, ...]:
    """In the tools, the system prompt and the first message, in the order of their bytes."""
    return tuple(_found(request, price))


def volatile_at(written: bytes, at: int) -> str | None:
    """What the string looks like in which, or right behind which, this byte stands; None for nothing volatile."""
    start = max(0, at - AROUND_BYTES_MAX)
    around = _VOLATILE.finditer(written[start : at + AROUND_BYTES_MAX])
    found = (match for match in around if match.start() <= at - start <= match.end())
    return next((_name_of(match) for match in found), None)


def volatile_within(written: bytes, start: int, end: int) -> str | None:
    """What the first string between the two bytes looks like that looks volatile."""
    match = _VOLATILE.search(written, start, min(end, start + AROUND_BYTES_MAX))
    return _name_of(match) if match else None


def _found(request: SentRequest, price: Price | None) -> Iterator[VolatileString]:
    scroll = request.scroll
    whole = readable_tokens(request, len(scroll.pieces))
    first_role = next((piece.role for piece in scroll.pieces if piece.place == "messages"), None)
    for index, (piece, link) in enumerate(zip(scroll.pieces, scroll.links, strict=True)):
        if piece.place == "messages" and piece.role != first_role:
            return
        start = link.end - len(piece.data)
        lost = whole - readable_tokens(request, kept_by(request, index))
        for what, at, shown in _in(piece.data):
            cost = None if price is None else rewrite_usd(request, lost, price)
            yield VolatileString(what, request.paths[index], piece.place, start + at, shown, lost, cost)


def _in(written: bytes) -> Iterator[tuple[str, int, str]]:
    """What is sealed by a provider, or is a picture, is left out: it is sent back as it came."""
    looked_at = _SEALED.sub(lambda sealed: b" " * len(sealed[0]), written[:LOOKED_AT_BYTES_MAX])
    for count, match in enumerate(_VOLATILE.finditer(looked_at)):
        if count >= FOUND_PER_BLOCK_MAX:
            return
        yield _name_of(match), match.start(), match[0].decode(errors="replace")[:SHOWN_CHARS_MAX]


def _name_of(match: re.Match[bytes]) -> str:
    return _NAMES[int((match.lastgroup or "p0")[1:])]
