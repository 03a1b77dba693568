"""Finds strings early in a prompt that are likely to change with the next request."""

import re
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Place
from holdfast.catalog.rows import Price
from holdfast.ledger.requests import SentRequest, kept_by, readable_tokens, rewrite_usd

FOUND_PER_BLOCK_MAX = 5
# Patterns are searched this far into a block, and this far around a changed byte, so that huge prompts stay cheap.
LOOKED_AT_BYTES_MAX = 1024 * 1024
SHOWN_CHARS_MAX = 60
AROUND_BYTES_MAX = 256

# Order matters: the first alternative that matches names the string, so longer forms come first.
_PATTERNS = {
    "a date and time": rb"\b20\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d(?::[0-5]\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?",
    "a date": rb"\b20\d\d-[01]\d-[0-3]\d\b",
    "a time of day": rb"\b[0-2]\d:[0-5]\d(?::[0-5]\d)?\b",
    "words for now": rb"(?i)\b(?:today is|today's date|current (?:date|time|datetime)|the time is|as of now)\b",
    "a UUID": rb"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    # 1.6e9 to 2.0e9 seconds, September 2020 to May 2033, optionally with milliseconds.
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
_OPAQUE = re.compile(rb'"(?:data|signature|encrypted_content|thoughtSignature)":"[^"]*"')


class VolatileString(msgspec.Struct, frozen=True):
    """If this string changes, the next request writes `rewritten_tokens` (estimated) again."""

    what: str
    path: str
    place: Place
    byte: int
    shown: str
    rewritten_tokens: int
    rewritten_usd: Decimal | None


def volatile_strings(request: SentRequest, price: Price | None) -> tuple[VolatileString, ...]:
    """Searches the tools, the system prompt and the first message; results are in byte order."""
    return tuple(_find_strings(request, price))


def volatile_at(data: bytes, at: int) -> str | None:
    """The kind of volatile string that contains or ends at byte `at`; None if there is none."""
    start = max(0, at - AROUND_BYTES_MAX)
    matches = _VOLATILE.finditer(data[start : at + AROUND_BYTES_MAX])
    touching = (match for match in matches if match.start() <= at - start <= match.end())
    return next((_pattern_name(match) for match in touching), None)


def volatile_within(data: bytes, start: int, end: int) -> str | None:
    """The kind of the first volatile string between two bytes; None if there is none."""
    match = _VOLATILE.search(data, start, min(end, start + AROUND_BYTES_MAX))
    return _pattern_name(match) if match else None


def _find_strings(request: SentRequest, price: Price | None) -> Iterator[VolatileString]:
    buffer = request.scroll
    readable = readable_tokens(request, len(buffer.pieces))
    first_role = next((block.role for block in buffer.pieces if block.place == "messages"), None)
    for index, (block, digest) in enumerate(zip(buffer.pieces, buffer.links, strict=True)):
        if block.place == "messages" and block.role != first_role:
            return
        start = digest.end - len(block.data)
        # Rewritten if this block changes: what is readable now minus what stays readable before it.
        lost = readable - readable_tokens(request, kept_by(request, index))
        for kind, offset, excerpt in _search_block(block.data):
            cost = None if price is None else rewrite_usd(request, lost, price)
            yield VolatileString(kind, request.paths[index], block.place, start + offset, excerpt, lost, cost)


def _search_block(data: bytes) -> Iterator[tuple[str, int, str]]:
    """Images and provider-signed data are skipped: they are sent back exactly as received."""
    searched = _OPAQUE.sub(lambda opaque: b" " * len(opaque[0]), data[:LOOKED_AT_BYTES_MAX])
    for count, match in enumerate(_VOLATILE.finditer(searched)):
        if count >= FOUND_PER_BLOCK_MAX:
            return
        yield _pattern_name(match), match.start(), match[0].decode(errors="replace")[:SHOWN_CHARS_MAX]


def _pattern_name(match: re.Match[bytes]) -> str:
    return _NAMES[int((match.lastgroup or "p0")[1:])]
