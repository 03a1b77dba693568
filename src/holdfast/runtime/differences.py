"""Where two results of one function first differ: at which byte, and where in their JSON."""

import re

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.pieces import common_length

EXCERPT_BYTES_BEFORE = 30
EXCERPT_BYTES_AFTER = 60
WORD_BYTES_MAX = 200

_WORD_BEFORE = re.compile(rb"[\w.:+-]+\Z")


class Difference(msgspec.Struct, frozen=True):
    """`path` leads into the JSON, where the results are that; None for other text."""

    byte: int
    path: str | None
    only_order_of_members: bool


def first_difference(kind: str, before: bytes, after: bytes) -> Difference | None:
    if before == after:
        return None
    byte = common_length(before, after)
    old, new = _decoded(kind, before), _decoded(kind, after)
    return Difference(
        byte=byte,
        path=None if old is None or new is None else path_of_difference(old, new),
        only_order_of_members=old is not None and canonical_json(old) == canonical_json(new),
    )


def start_of_word(said: bytes, byte: int) -> int:
    """Where the number, address or word begins that this byte is in."""
    found = _WORD_BEFORE.search(said, max(0, byte - WORD_BYTES_MAX), byte)
    return found.start() if found else byte


def path_of_difference(old: object, new: object) -> str:
    """The innermost place at which the two differ, such as `messages.0.content`; empty for the whole."""
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
            if _spelled(value) != _spelled(other):
                return str(name), value, other
    if isinstance(old, list) and isinstance(new, list):
        for index, (value, other) in enumerate(zip(old, new, strict=False)):
            if _spelled(value) != _spelled(other):
                return str(index), value, other
    return None


def _spelled(value: object) -> bytes:
    """Unlike values, their bytes also differ by the order of members."""
    return msgspec.json.encode(value)


def _decoded(kind: str, said: bytes) -> object:
    """JSON as such, and text that is a JSON object or list."""
    if kind != "json" and said[:1] not in (b"{", b"["):
        return None
    try:
        return msgspec.json.decode(said)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def excerpt(said: bytes, byte: int) -> str:
    """What stands around a byte."""
    return said[max(0, byte - EXCERPT_BYTES_BEFORE) : byte + EXCERPT_BYTES_AFTER].decode(errors="replace")
