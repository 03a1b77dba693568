"""The pinned JSON encoding: the same value gives the same bytes in every process and every release."""

import hashlib

import msgspec

JSON_ENCODING_VERSION = "msgspec-sorted/1"
"""Stored next to digests, so that a later change of the encoding is detected instead of guessed."""

_sorted = msgspec.json.Encoder(order="sorted")
_in_field_order = msgspec.json.Encoder()


def canonical_json(value: object) -> bytes:
    """Compact JSON with sorted keys."""
    return _sorted.encode(value)


def encode_json(value: object) -> bytes:
    """Compact JSON with keys in the order of the value; for wire objects whose order our own code fixes."""
    return _in_field_order.encode(value)


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def extend_digest(previous: str, data: bytes) -> str:
    """The digest of a prefix extended by `data`; `previous` is the digest of the prefix, empty at the start."""
    # h[i] = sha256(h[i-1] + bytes[i]), with h[i-1] in hexadecimal.
    return hashlib.sha256(previous.encode() + data).hexdigest()
