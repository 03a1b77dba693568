"""One spelling of JSON, pinned: same value, same bytes, in every process and for every version we release."""

import hashlib

import msgspec

ENCODING = "msgspec-sorted/1"
"""The name of the spelling; stored beside digests so that a later change of it is seen and not guessed."""

_sorted = msgspec.json.Encoder(order="sorted")
_as_given = msgspec.json.Encoder()


def canonical_json(value: object) -> bytes:
    """Compact JSON with sorted keys."""
    return _sorted.encode(value)


def plain_json(value: object) -> bytes:
    """Compact JSON with keys in the order given; for wire objects whose order we fix ourselves."""
    return _as_given.encode(value)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def chain(previous: str, data: bytes) -> str:
    """The digest of everything up to and including `data`, given the digest of everything before it."""
    return hashlib.sha256(previous.encode() + data).hexdigest()
