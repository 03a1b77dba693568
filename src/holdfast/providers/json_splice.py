"""JSON of providers, handled without changing the bytes of values: split, joined, repaired, and read leniently."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from holdfast.types.blocks import replace_surrogates
from holdfast.types.json_encoding import canonical_json, encode_json
from holdfast.types.prompt import Parameters

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Everything that decoding foreign JSON can raise."""

Source = TypeVar("Source", str, bytes)
Value = TypeVar("Value")

# Strings and structural characters; everything between them belongs to a value.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]')
_CLOSING = {b"{": b"}", b"[": b"]"}
_decode_string = msgspec.json.Decoder(str).decode
_decode_string_or_null = msgspec.json.Decoder(str | None).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

# One limit for all, because the depth at which decoding fails differs by Python version.
NESTING_MAX = 100
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(r"[{}\[\]]")


JSON_VALUES_MAX = 300_000
"""Of JSON that is decoded into objects: each takes hundreds of bytes and some microseconds, so that 32 MiB of nothing
else would take gigabytes and a minute. A prompt of a million tokens has fewer."""

# Matches to the end of a string that does not end, else each quote in it would be tried as a start.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def has_too_many_values(raw: bytes) -> bool:
    """Whether JSON has more than JSON_VALUES_MAX values; found without decoding it."""
    # A value and its comma have two bytes at least.
    if len(raw) <= 2 * JSON_VALUES_MAX or raw.count(b",") <= JSON_VALUES_MAX:
        return False
    # Each value has at most two strings, its name and itself, with two quotes each.
    if raw.count(b'"') - raw.count(b'\\"') > 4 * JSON_VALUES_MAX:
        return True
    # Most commas may be in texts.
    return _STRING.sub(b"", raw).count(b",") > JSON_VALUES_MAX


def split_object(raw: bytes) -> dict[str, bytes]:
    """The values by name, each byte for byte. Of two members with one name the last wins."""
    return {name: bytes(value) for name, value in _decode_object(raw).items()}


def join_object(members: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(encode_string(name) + b":" + value for name, value in members.items()) + b"}"


def remove_member(raw: bytes, name: str) -> bytes:
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


def get_string_member(members: Mapping[str, bytes], name: str) -> str:
    """A required string member. Raises msgspec's errors, which never quote a value."""
    if name not in members:
        raise msgspec.ValidationError(f"Object missing required field `{name}`")
    return _decode_string(members[name])


def get_optional_string(members: Mapping[str, bytes], name: str) -> str:
    """A string member; empty if it is missing or null."""
    return _decode_string_or_null(members.get(name, b"null")) or ""


def close_brackets(start: bytes) -> bytes:
    """A truncated JSON text, completed by closing its open brackets and braces."""
    unclosed: list[bytes] = []
    for token in _TOKEN.finditer(start):
        if token[0] in _CLOSING:
            unclosed.append(_CLOSING[token[0]])
        elif unclosed and token[0] == unclosed[-1]:
            unclosed.pop()
    return start + b"".join(reversed(unclosed))


def encode_string(text: str) -> bytes:
    """The text as a JSON string."""
    try:
        return encode_json(text)
    except UnicodeEncodeError:
        return encode_json(replace_surrogates(text))


def encode_json_text(json_text: str) -> bytes:
    """JSON text as bytes that are valid in a request."""
    return replace_surrogates(json_text).encode()


def make_valid_arguments(text: str) -> str:
    """The text if it is a JSON object, else an object that wraps it: providers refuse a history with invalid ones."""
    if decode_or_none(_decode_object, text) is None or _is_deeper(text, NESTING_MAX):
        return encode_json({"INVALID_JSON": text}).decode()
    return text


def _is_deeper(text: str, depth_max: int) -> bool:
    """Whether the JSON nests deeper. Brackets inside strings do not count."""
    if text.count("{") + text.count("[") <= depth_max:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > depth_max:
            return True
    return False


def extra_field(parameters: Parameters, name: str) -> object:
    """The decoded value of an extra field; None if absent or unreadable."""
    return decode_json_or_none(dict(parameters.extra).get(name))


def decode_json_or_none(text: str | None) -> object:
    """The value of a JSON text; None if absent or unreadable."""
    return decode_or_none(msgspec.json.decode, text)


def decode_or_none(decode: Callable[[Source], Value], source: Source | None) -> Value | None:
    """None if absent or unreadable."""
    try:
        return decode(source) if source else None
    except UNREADABLE:
        return None


def nested_field(value: object, *names: str) -> object:
    """A member of nested JSON objects; None if any of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def canonicalize_json(text: str | None) -> str | None:
    """The JSON text in canonical form, so that equal values compare equal; None if absent or unreadable."""
    value = decode_json_or_none(text)
    return None if value is None else canonical_json(value).decode()
