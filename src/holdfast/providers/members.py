"""Splits and joins JSON objects without changing the bytes of their values."""

import re
from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json

# Strings and structural characters; everything between them belongs to a value.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]')

_decode_string = msgspec.json.Decoder(str).decode
_CLOSING = {b"{": b"}", b"[": b"]"}

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def take_apart(raw: bytes) -> dict[str, bytes]:
    """The values by name, each byte for byte. Of two members with one name the last wins."""
    return {name: bytes(value) for name, value in _decode_object(raw).items()}


def put_together(members: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(quoted(name) + b":" + value for name, value in members.items()) + b"}"


def without(raw: bytes, name: str) -> bytes:
    """The object without the members of that name; the others keep all their bytes, white space included."""
    remaining: list[bytes] = []
    depth = start = 0
    key: str | None = None
    for token in _TOKEN.finditer(raw):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                start = token.end() if depth == 1 else start
            case b"}" | b"]":
                depth -= 1
            case b",":
                pass
            case string:
                # The first string of a member is its name; later ones belong to its value.
                key = msgspec.json.decode(string, type=str) if depth == 1 and key is None else key
        if depth == 0 or (depth == 1 and token[0] == b","):
            remaining += [raw[start : token.start()]] if key != name else []
            start, key = token.end(), None
    return b"{" + b",".join(remaining) + b"}"


def read_string(members: Mapping[str, bytes], name: str) -> str:
    """A required string member. Raises msgspec's errors, which never quote a value."""
    if name not in members:
        raise msgspec.ValidationError(f"Object missing required field `{name}`")
    return _decode_string(members[name])


def closed(start: bytes) -> bytes:
    """A truncated JSON text, completed by closing its open brackets and braces."""
    unclosed: list[bytes] = []
    for token in _TOKEN.finditer(start):
        if token[0] in _CLOSING:
            unclosed.append(_CLOSING[token[0]])
        elif unclosed and token[0] == unclosed[-1]:
            unclosed.pop()
    return start + b"".join(reversed(unclosed))


def quoted(text: str) -> bytes:
    """The text as a JSON string."""
    try:
        return plain_json(text)
    except UnicodeEncodeError:
        return plain_json(mend_surrogates(text))


def spliced(json_text: str) -> bytes:
    """JSON text as bytes that are valid in a request."""
    return mend_surrogates(json_text).encode()
