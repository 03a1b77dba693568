"""Signatures of simulated thinking. They carry what they are bound to, so nothing is stored between requests."""

import base64
import contextlib

import msgspec

from holdfast.types.json_encoding import canonical_json, extend_digest, sha256_hex
from holdfast.types.prompt import Ttl

SEAL_MAKER = "simulated"
_DIGEST_CHARS = 24  # 96 bits: no accidental collisions, and signatures stay short.


class ThinkingSeal(msgspec.Struct, frozen=True, array_like=True):
    """The content of a signature: the model, a digest of its thinking, and the prefix before it."""

    maker: str
    model: str
    prefix: str
    thought_digest: str


def write_seal(model: str, prefix: str, thought: str) -> str:
    return base64.b64encode(canonical_json(ThinkingSeal(SEAL_MAKER, model, prefix, thought))).decode()


def read_seal(text: str) -> ThinkingSeal | None:
    """The content of a signature; None if the simulator did not write it."""
    try:
        seal = msgspec.json.decode(base64.b64decode(text, validate=True), type=ThinkingSeal)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return seal if seal.maker == SEAL_MAKER else None


def digest_thought(text: str) -> str:
    return sha256_hex(text.encode())[:_DIGEST_CHARS]


def extend_prefix_digest(prefix: str, speaker: str, data: bytes, ttl: Ttl | None) -> str:
    """Chain a block to the prefix, ignoring member order: clients parse and re-encode what they received."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        data = canonical_json(msgspec.json.decode(data))
    return extend_digest(prefix, canonical_json([speaker, ttl]) + data)[:_DIGEST_CHARS]
