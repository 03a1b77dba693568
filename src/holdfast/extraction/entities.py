"""Extract entities from a text (paths, URLs, ids, symbols, values, errors), shorten texts, and split sentences.

The rules are independent of language and tool: they look at how a word is written. A match is always a substring.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

EntityKind = Literal["path", "url", "id", "symbol", "command", "error", "value"]
ENTITY_CHARACTERS_MAX = 160
WORD_CHARACTERS_MAX = 300
TEXT_CHARACTERS_MAX = 400_000
"""How much of one text is scanned; the rest of a longer one is still in the log."""


class Entity(msgspec.Struct, frozen=True, array_like=True):
    kind: EntityKind
    text: str


_URL = r"(?P<url>https?://[^\s\"'`<>()\[\]{}]+)"
_PATH = r"(?P<path>(?<![\w/.@-])(?:~|\.{1,2})?/?(?:[\w@+.-]+/)+[\w@+.-]*[\w@+-]|(?<![\w/.@-])/[\w@+.-]{2,}\b)"
_FILE = r"(?P<file>(?<![\w/.@-])[\w-]+\.(?:[a-z][a-z0-9]{0,4}|[A-Z]{1,4})\b(?![\w(/]))"
_UUID = r"(?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)"
_HEX = r"(?P<hex>\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)"
_TICKET = r"(?P<ticket>(?<![\w#])#\d{1,7}\b|\b[A-Z][A-Z0-9]{1,9}-\d{1,7}\b)"
_CODE = r"(?P<code>\b(?=[A-Z0-9]*[A-Z])(?=[A-Z0-9]*[0-9])[A-Z0-9]{5,12}\b)"
_VALUE = (
    r"(?P<value>(?<![\w.])v?\d+(?:\.\d+){2,3}(?:-[a-z0-9.]+)?\b|\b\d{4}-\d\d-\d\d\b"
    r"|(?<![\w.])[$€£]\d[\d,]*(?:\.\d+)?\b|(?<![\w.-])\d+(?:\.\d+)?(?:ms|KB|MB|GB|kB|KiB|MiB|GiB|%)(?!\w))"
)
_SYMBOL = (
    r"(?P<symbol>\b[A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)+\b|\b[a-z]+(?:[A-Z][a-z0-9]*)+\w*\b"
    r"|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\w*\b|\b_*[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+_*\b)"
)
_ENTITY = re.compile("|".join((_URL, _UUID, _PATH, _FILE, _VALUE, _TICKET, _HEX, _CODE, _SYMBOL)))

_KIND_OF: dict[str, EntityKind] = {
    "url": "url",
    "uuid": "id",
    "path": "path",
    "file": "path",
    "value": "value",
    "ticket": "id",
    "hex": "id",
    "code": "id",
    "symbol": "symbol",
}

_WORD = re.compile(r"[^\s\"'`<>()\[\]{},;|*=]+")
# A word of lower-case letters, but for its first; so is every part of it. One call instead of three string methods.
_PLAIN = re.compile(r"[a-zA-Z]?[a-z]+")
_MEASURED = re.compile(r"(?<![\w.-])\d+(?:\.\d+)? (?:ms|seconds?|minutes?|hours?|days?|KB|MB|GB|bytes|tokens)\b")
_ERROR = re.compile(r"[a-z](?:Error|Exception)\b|\berror(?:\[\w+\])?:|\bfatal:|\bpanic:|\bFAILED\b|--- FAIL:")
# Each match of `_ERROR` contains one of these. Searching for them first takes a fiftieth of the time.
_ERROR_WORDS = ("Error", "Exception", "error", "fatal:", "panic:", "FAILED", "--- FAIL:")
_PASSED = re.compile(r"^\s*(?:--- PASS|=== |PASS\b|ok\s|✓|✔|√|test .* \.\.\. ok$)")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b\d[\d.,:]*\b")

# Abbreviations that look like a file name with a suffix.
_NO_FILE = ("e.g", "i.e", "etc.", "vs.")


def find_entities(text: str) -> Iterator[Entity]:
    """Every mention; a word that occurs twice is returned twice."""
    scanned = text[:TEXT_CHARACTERS_MAX]
    return _iterate_entities(scanned, _WORD.findall(scanned))


def find_distinct_entities(text: str) -> dict[Entity, None]:
    """Every entity once, in the order in which they are first mentioned."""
    scanned = text[:TEXT_CHARACTERS_MAX]
    # Most words of a long text recur, and distinguishing words takes less than distinguishing entities.
    return dict.fromkeys(_iterate_entities(scanned, dict.fromkeys(_WORD.findall(scanned))))


def make_entity_check(text: str) -> Callable[[Entity], bool]:
    """Whether a text contains an entity, as a function that is fast enough for thousands of them."""
    # An entity that is part of one word is contained if and only if it is in one of the words, most of which recur.
    # That word is at least as long, and is plain only if the entity is.
    words = dict.fromkeys(_WORD.findall(text))
    longest_first = sorted((word for word in words if not _PLAIN.fullmatch(word)), key=len, reverse=True)
    joined = " ".join(longest_first)
    lengths = [-len(word) for word in longest_first]
    ends = [0, *accumulate(1 - length for length in lengths)]

    def contains(entity: Entity) -> bool:
        searched = entity.text
        if searched in words:
            return True
        if _PLAIN.fullmatch(searched) or not _WORD.fullmatch(searched):
            return searched in text
        return joined.find(searched, 0, ends[bisect_right(lengths, -len(searched))]) >= 0

    return contains


def _iterate_entities(scanned: str, words: Iterable[str]) -> Iterator[Entity]:
    for word in words:
        if len(word) > 3:
            yield from _entities_in_word(word[:WORD_CHARACTERS_MAX])
    for match in _MEASURED.finditer(scanned):
        yield Entity("value", match.group())
    for line in find_error_lines(scanned):
        yield Entity("error", error_signature(line))


@functools.lru_cache(maxsize=65_536)
def _entities_in_word(word: str) -> tuple[Entity, ...]:
    """Cached, because most words recur many times."""
    # Every pattern needs a digit, a sign or a capital letter after the first one.
    if _PLAIN.fullmatch(word):
        return ()
    entities = []
    for match in _ENTITY.finditer(word):
        group = match.lastgroup or "symbol"
        word_text = match.group().rstrip(".,;:")
        if not 3 < len(word_text) <= ENTITY_CHARACTERS_MAX:
            continue
        kind = _KIND_OF[group]
        if kind != "path" or (not word_text.startswith(_NO_FILE) and any(map(str.isalpha, word_text))):
            entities.append(Entity(kind, word_text))
    return tuple(entities)


def find_error_lines(text: str) -> list[str]:
    """Lines that report an error, each once and verbatim, except overlong ones."""
    lines: dict[str, None] = {}
    for start, end in _find_lines_with(text, _ERROR_WORDS):
        # A test may be named after an error: `--- PASS: TestParseError` reports none.
        line = text[start:end]
        if end - start <= ENTITY_CHARACTERS_MAX * 2 and _ERROR.search(line) and not reports_success(line):
            lines[line.strip()] = None
    return list(lines)


def _find_lines_with(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Where the lines that contain one of the words start and end, in order."""
    lines = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            lines.add((text.rfind("\n", 0, at) + 1, end))
            at = text.find(word, end)
    return sorted(lines)


def reports_success(line: str) -> bool:
    """Whether a line of a test run says that something passed."""
    return _PASSED.match(line) is not None


def error_signature(line: str) -> str:
    """The error without its numbers, so that repetitions of it compare equal."""
    return _NUMBERS.sub("N", " ".join(line.split()))[:ENTITY_CHARACTERS_MAX]


_SPACES = re.compile(r"\s+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def collapse_whitespace(text: str) -> str:
    """The text on one line, with every run of white space as one space."""
    return _SPACES.sub(" ", text).strip()


def truncate_words(text: str, characters_max: int) -> str:
    """The text on one line; a longer one is cut after a whole word and gets an ellipsis."""
    line = collapse_whitespace(text[: characters_max * 4 + 1_000])
    if len(line) <= characters_max:
        return line
    beginning = line[:characters_max]
    whole_words = beginning if line[characters_max] == " " else beginning[: beginning.rfind(" ") + 1]
    return f"{whole_words.rstrip()} …".strip()


def split_sentences(text: str) -> list[str]:
    """The sentences and lines of a text, stripped."""
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def find_last_line(text: str, characters_max: int) -> str:
    tail = text[-4_000:] if len(text) > 4_000 else text
    lines = [line for line in tail.splitlines() if line.strip()]
    if len(text) > 4_000 and len(lines) > 1:
        # The first line may be the truncated end of a longer one.
        lines = lines[1:]
    return truncate_words(lines[-1], characters_max) if lines else ""
