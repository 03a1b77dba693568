"""Encodes and decodes thinking as OpenRouter's `reasoning_details`.

A detail with anything we do not know is carried as its bytes.
"""

import msgspec

from holdfast.canonical.blocks import Opaque, RedactedThinking, Thinking
from holdfast.providers.members import quoted, read_string, take_apart
from holdfast.providers.openai_chat.kinds import REASONING

MEMBER = "reasoning_details"

Reasoning = Thinking | RedactedThinking | Opaque

# Formats whose details keep their meaning without the members `format` and `index`.
_PLAIN_FORMATS = (None, "unknown", "anthropic-claude-v1")


class _Detail(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    signature: str | None = None
    data: str | None = None
    format: str | None = None


_decode_detail = msgspec.json.Decoder(_Detail).decode


def spell_detail(block: Reasoning) -> bytes:
    match block:
        case Thinking(text=text, signature=signature):
            signature_member = b"" if signature is None else b',"signature":' + quoted(signature)
            return b'{"type":"reasoning.text","text":%b%b}' % (quoted(text), signature_member)
        case RedactedThinking(data=encrypted):
            return b'{"type":"reasoning.encrypted","data":' + quoted(encrypted) + b"}"
        case Opaque(raw=raw):
            return raw


def read_detail(raw: bytes) -> Reasoning:
    """A detail of a request."""
    members = take_apart(raw)
    kind = read_string(members, "type")
    names = members.keys() - {"type"}
    if kind == "reasoning.text" and names in ({"text"}, {"text", "signature"}) and b"null" not in members.values():
        return Thinking(read_string(members, "text"), read_string(members, "signature") if len(names) == 2 else None)
    if kind == "reasoning.encrypted" and names == {"data"}:
        return RedactedThinking(read_string(members, "data"))
    return Opaque(REASONING + kind, raw)


def answered_detail(raw: bytes) -> Reasoning:
    """A detail of a response, where every one has a format and an index."""
    detail = _decode_detail(raw)
    if detail.format in _PLAIN_FORMATS:
        if detail.type == "reasoning.text":
            return Thinking(detail.text or "", detail.signature or None)
        if detail.type == "reasoning.encrypted" and detail.data is not None:
            return RedactedThinking(detail.data)
    return Opaque(REASONING + detail.type, raw)
