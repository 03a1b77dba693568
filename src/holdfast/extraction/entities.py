"""Which things a text names: paths, addresses, ids, symbols, values and errors.

The rules know no language and no tool: they look at how a word is written. What is found is always a piece of the text.
"""

import functools
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

EntityKind = Literal["path", "url", "id", "symbol", "command", "error", "value"]
KINDS: tuple[EntityKind, ...] = ("path", "url", "id", "symbol", "command", "error", "value")

ENTITY_CHARACTERS_MAX = 160
WORD_CHARACTERS_MAX = 300
TEXT_CHARACTERS_MAX = 400_000
"""How much of one text is looked at; what a longer one says is in its beginning and in the log."""


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
_FOUND = re.compile("|".join((_URL, _UUID, _PATH, _FILE, _VALUE, _TICKET, _HEX, _CODE, _SYMBOL)))
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
_MEASURED = re.compile(r"(?<![\w.-])\d+(?:\.\d+)? (?:ms|seconds?|minutes?|hours?|days?|KB|MB|GB|bytes|tokens)\b")
_ERROR = re.compile(r"[a-z](?:Error|Exception)\b|\berror(?:\[\w+\])?:|\bfatal:|\bpanic:|\bFAILED\b|--- FAIL:")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b\d[\d.,:]*\b")
_NO_FILE = ("e.g", "i.e", "etc.", "vs.")


def entities_in(text: str) -> Iterator[Entity]:
    """Every mention; a word that is named twice comes twice."""
    looked_at = text[:TEXT_CHARACTERS_MAX]
    for word in _WORD.findall(looked_at):
        if len(word) > 3:
            yield from _in_word(word[:WORD_CHARACTERS_MAX])
    for match in _MEASURED.finditer(looked_at):
        yield Entity("value", match.group())
    for line in error_lines(looked_at):
        yield Entity("error", signature(line))


@functools.lru_cache(maxsize=65_536)
def _in_word(word: str) -> tuple[Entity, ...]:
    """Most words come again and again; what each names is found once."""
    found = []
    for match in _FOUND.finditer(word):
        group = match.lastgroup or "symbol"
        named = match.group().rstrip(".,;:")
        if 3 < len(named) <= ENTITY_CHARACTERS_MAX and _speaks(group, named):
            found.append(Entity(_KIND_OF[group], named))
    return tuple(found)


def _speaks(group: str, word: str) -> bool:
    if group in ("path", "file"):
        return not word.startswith(_NO_FILE) and any(character.isalpha() for character in word)
    return True


def error_lines(text: str) -> list[str]:
    """Lines that tell of an error, each once and as it stands, those left out that are too long to be told."""
    found: dict[str, None] = {}
    end = 0
    while (match := _ERROR.search(text, end)) is not None:
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        end = len(text) if end < 0 else end
        if end - start <= ENTITY_CHARACTERS_MAX * 2:
            found[text[start:end].strip()] = None
    return list(found)


def signature(line: str) -> str:
    """The error without its numbers, so that the same one is known again."""
    return _NUMBERS.sub("N", " ".join(line.split()))[:ENTITY_CHARACTERS_MAX]
