"""Finds the first difference between two results of one function: its byte offset and its path in their JSON."""

import re

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.pieces import common_length

EXCERPT_BYTES_BEFORE = 30
EXCERPT_BYTES_AFTER = 60
WORD_BYTES_MAX = 200

_WORD_BEFORE = re.compile(rb"[\w.:+-]+\Z")


class Difference(msgspec.Struct, frozen=True):
    """`path` is the JSON path of the difference; None if the results are not JSON."""

    byte: int
    path: str | None
    only_order_of_members: bool


def first_difference(kind: str, before: bytes, after: bytes) -> Difference | None:
    """The first difference of two results of this kind ("text", "json" or "bytes"); None if they are equal."""
    if before == after:
        return None
    byte = common_length(before, after)
    old, new = _decode(kind, before), _decode(kind, after)
    return Difference(
        byte=byte,
        path=None if old is None or new is None else path_of_difference(old, new),
        only_order_of_members=old is not None and canonical_json(old) == canonical_json(new),
    )


def start_of_word(content: bytes, byte: int) -> int:
    """The offset at which the number, address or word around this byte begins."""
    match = _WORD_BEFORE.search(content, max(0, byte - WORD_BYTES_MAX), byte)
    return match.start() if match else byte


def path_of_difference(old: object, new: object) -> str:
    """The innermost path at which the two values differ, such as `messages.0.content`; empty for the root."""
    path: list[str] = []
    while True:
        step = _step(old, new)
        if step is None:
            return ".".join(path)
        name, old, new = step
        path.append(name)


def _step(old: object, new: object) -> tuple[str, object, object] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for (name, value), (other_name, other) in zip(old.items(), new.items(), strict=False):
            if name != other_name:
                return None
            if _encode(value) != _encode(other):
                return str(name), value, other
    if isinstance(old, list) and isinstance(new, list):
        for index, (value, other) in enumerate(zip(old, new, strict=False)):
            if _encode(value) != _encode(other):
                return str(index), value, other
    return None


def _encode(value: object) -> bytes:
    # Comparing bytes, not values: two dicts that differ only in member order are equal, but miss the cache.
    return msgspec.json.encode(value)


def _decode(kind: str, content: bytes) -> object:
    """Decode JSON results, and text results that are a JSON object or list; None for all others."""
    if kind != "json" and content[:1] not in (b"{", b"["):
        return None
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def excerpt(content: bytes, byte: int) -> str:
    return content[max(0, byte - EXCERPT_BYTES_BEFORE) : byte + EXCERPT_BYTES_AFTER].decode(errors="replace")
