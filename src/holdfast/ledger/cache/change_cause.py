"""Finds the likely cause of a prefix change, and strings early in a prompt that are likely to change next."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.catalog.schema import Price
from holdfast.ledger.cache.prefix_diff import diff_texts, format_block
from holdfast.ledger.requests.parse import (
    ParsedRequest,
    count_readable_tokens,
    count_unaffected_blocks,
    rewrite_cost_usd,
)
from holdfast.types.json_encoding import canonical_json
from holdfast.types.prompt import PrefixChange, PrefixChangeCause, PromptSection
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, common_prefix_length

# Longer blocks are compared by their bytes only, without decoding or diffing: this runs before every changed request.
COMPARED_BYTES_MAX = 256 * 1024
_CLOCK = frozenset({"a date and time", "a date", "a time of day", "words for now", "seconds since the epoch"})
_IDS = frozenset({"a UUID", "a git hash", "a hexadecimal id", "an object's address"})
_DIGIT = re.compile(r"\d")
_UPPER = re.compile(r"[A-ZÀ-ÖØ-Þ]")
_LETTER = re.compile(r"[^\W\dX_]")

# A block with more of them (a log, say) needs no complete list to be recognised as volatile.
MATCHES_PER_BLOCK_MAX = 5

# Patterns are searched this far into a block, and this far around a changed byte, so that huge prompts stay cheap.
SEARCHED_BYTES_MAX = 1024 * 1024
AROUND_BYTES_MAX = 256
EXCERPT_CHARS_MAX = 60  # One line of a terminal, with the path beside it.

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

_GROUPS = (b"(?P<p%d>%b)" % (at, pattern.removeprefix(b"(?i)")) for at, pattern in enumerate(_PATTERNS.values()))
_VOLATILE = re.compile(b"|".join(_GROUPS), re.IGNORECASE)
_NAMES = tuple(_PATTERNS)
_TEXT_MEMBER = b'"text":"'
_OPAQUE = re.compile(rb'"(?:data|signature|encrypted_content|thoughtSignature)":"[^"]*"')


def find_prefix_change(before: Sequence[EncodedBlock], after: Sequence[EncodedBlock], at: PrefixDigest) -> PrefixChange:
    """The change between two prompts, given their blocks from the first differing one on.

    `at` is the digest of that block in the second prompt. `before` is empty if those blocks are no longer known,
    `after` if the second prompt ends there.
    """
    if not after:
        section = before[0].section if before else "messages"
        return PrefixChange(at.end, section, "removed", "the prompt ends earlier than before")
    new = after[0]
    start = at.end - len(new.data)
    if not before:
        pattern = classify_volatile_at(new.data, 0)
        return PrefixChange(at.start, new.section, *_cause_of_volatile(pattern))
    old = before[0]
    if (old.section, old.role, old.container_start) != (new.section, new.role, new.container_start):
        tail = _classify_tail(before, after, 0)
        return PrefixChange(at.start, new.section, *_cause_of_other_block(before, after), tail=tail)
    shared = common_prefix_length(old.data, new.data)
    diff = tuple(map(mask_diff_line, diff_texts(format_block(old), format_block(new)))) if _is_short(old, new) else ()
    tail = _classify_tail(before, after, shared)
    return PrefixChange(start + shared, new.section, *_cause_of_edit(before, after, shared), diff, tail)


def _classify_tail(
    before: Sequence[EncodedBlock], after: Sequence[EncodedBlock], shared_bytes: int
) -> Literal["rewritten", "replaced"] | None:
    """Whether the change is in what the request before added after the last reply, and what became of that."""
    if any(block.section != "messages" or block.role == "assistant" for block in before):
        return None
    # The conversation went on after the message, or at least half of its text is still where it was.
    is_continued = any(block.role == "assistant" for block in after)
    text_start = before[0].data.find(_TEXT_MEMBER, 0, AROUND_BYTES_MAX) + len(_TEXT_MEMBER)
    is_same_text = 2 * (shared_bytes - text_start) >= len(before[0].data) - text_start
    return "rewritten" if is_continued or is_same_text else "replaced"


def mask_diff_line(line: str) -> str:
    """A diff line without its content: sign and punctuation stay, letters become x and digits 0."""
    sign, text = (line[:1], line[1:]) if line[:1] in ("+", "-", " ", "@") else ("", line)
    # Upper case first: `_LETTER` does not match X, so the mask preserves case.
    return sign + _DIGIT.sub("0", _LETTER.sub("x", _UPPER.sub("X", text)))


def _is_short(old: EncodedBlock, new: EncodedBlock) -> bool:
    return max(len(old.data), len(new.data)) <= COMPARED_BYTES_MAX


def _cause_of_other_block(
    before: Sequence[EncodedBlock], after: Sequence[EncodedBlock]
) -> tuple[PrefixChangeCause, str]:
    """The cause where the block is now of another kind."""
    old, new = before[0], after[0]
    if "tools" in (old.section, new.section):
        return _cause_of_tools(before, after)
    if old.section == "messages" and any(block.data == new.data for block in before[1:]):
        return "removed", "the block was removed, and the one after it took its place"
    return "text", f"{_describe_block(new)} replaced {_describe_block(old)}"


def _describe_block(block: EncodedBlock) -> str:
    names = {"tools": "a tool", "system": "system text"}
    return names.get(block.section, f"a block of the {block.role or 'conversation'}")


def _cause_of_edit(
    before: Sequence[EncodedBlock], after: Sequence[EncodedBlock], shared: int
) -> tuple[PrefixChangeCause, str]:
    old, new = before[0], after[0]
    if new.section == "tools":
        return _cause_of_tools(before, after)
    if _is_short(old, new) and _same_members(old.data, new.data):
        return "order", "the same JSON members in another order"
    for data in (new.data, old.data):
        if (pattern := classify_volatile_at(data, shared)) is not None:
            return _cause_of_volatile(pattern)
    if old.section == "messages" and any(block.data == new.data for block in before[1:]):
        return "removed", "the block was removed, and the one after it took its place"
    if _is_short(old, new) and _same_words(old, new):
        return "order", "the same words in another order"
    return "text", "the text changed"


def _cause_of_volatile(pattern: str | None) -> tuple[PrefixChangeCause, str]:
    if pattern is None:
        return "unknown", ""
    cause: PrefixChangeCause = "clock" if pattern in _CLOCK else "id" if pattern in _IDS else "path"
    return cause, f"it looks like {pattern}"


def _cause_of_tools(before: Sequence[EncodedBlock], after: Sequence[EncodedBlock]) -> tuple[PrefixChangeCause, str]:
    old = [block.data for block in before if block.section == "tools"]
    new = [block.data for block in after if block.section == "tools"]
    if sorted(old) == sorted(new):
        return "order", "the same tools in another order"
    if old and new and parse_tool_name(old[0]) == parse_tool_name(new[0]) is not None:
        if _same_members(old[0], new[0]):
            return "order", "the JSON members of a tool in another order"
        return "tool schema", "the description or schema of a tool changed"
    removed, added = len(set(old) - set(new)), len(set(new) - set(old))
    return "tool list", f"tools new or changed: {added}, removed: {removed}"


def parse_tool_name(data: bytes) -> str | None:
    value = _decode_json(data)
    inner = value.get("function", value) if isinstance(value, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def _same_members(old: bytes, new: bytes) -> bool:
    old_value, new_value = _decode_json(old), _decode_json(new)
    return old_value is not None and canonical_json(old_value) == canonical_json(new_value)


def _same_words(old: EncodedBlock, new: EncodedBlock) -> bool:
    words = [sorted(format_block(block).split()) for block in (old, new)]
    return words[0] == words[1]


def _decode_json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


class VolatileString(msgspec.Struct, frozen=True):
    """If this string changes, the next request writes `rewritten_tokens` (estimated) again."""

    kind: str
    path: str
    section: PromptSection
    byte: int
    excerpt: str
    rewritten_tokens: int
    rewritten_usd: Decimal | None


def find_volatile_strings(request: ParsedRequest, price: Price | None) -> tuple[VolatileString, ...]:
    """Searches the tools, the system prompt and the first message; results are in byte order."""
    return tuple(_find_strings(request, price))


def classify_volatile_at(data: bytes, at: int) -> str | None:
    """The kind of volatile string that contains or ends at byte `at`; None if there is none."""
    start = max(0, at - AROUND_BYTES_MAX)
    matches = _VOLATILE.finditer(data[start : at + AROUND_BYTES_MAX])
    touching = (match for match in matches if match.start() <= at - start <= match.end())
    return next((_pattern_name(match) for match in touching), None)


def classify_volatile_within(data: bytes, start: int, end: int) -> str | None:
    """The kind of the first volatile string between two bytes; None if there is none."""
    match = _VOLATILE.search(data, start, min(end, start + AROUND_BYTES_MAX))
    return _pattern_name(match) if match else None


def _find_strings(request: ParsedRequest, price: Price | None) -> Iterator[VolatileString]:
    buffer = request.buffer
    readable = count_readable_tokens(request, len(buffer.blocks))
    first_role = next((block.role for block in buffer.blocks if block.section == "messages"), None)
    for index, (block, digest) in enumerate(zip(buffer.blocks, buffer.digests, strict=True)):
        if block.section == "messages" and block.role != first_role:
            return
        start = digest.end - len(block.data)
        # Rewritten if this block changes: what is readable now minus what stays readable before it.
        lost = readable - count_readable_tokens(request, count_unaffected_blocks(request, index))
        for kind, offset, excerpt in _search_block(block.data):
            cost = None if price is None else rewrite_cost_usd(request, lost, price)
            yield VolatileString(kind, request.paths[index], block.section, start + offset, excerpt, lost, cost)


def _search_block(data: bytes) -> Iterator[tuple[str, int, str]]:
    """Images and provider-signed data are skipped: they are sent back exactly as received."""
    searched = _OPAQUE.sub(lambda opaque: b" " * len(opaque[0]), data[:SEARCHED_BYTES_MAX])
    for count, match in enumerate(_VOLATILE.finditer(searched)):
        if count >= MATCHES_PER_BLOCK_MAX:
            return
        yield _pattern_name(match), match.start(), match[0].decode(errors="replace")[:EXCERPT_CHARS_MAX]


def _pattern_name(match: re.Match[bytes]) -> str:
    return _NAMES[int((match.lastgroup or "p0")[1:])]
