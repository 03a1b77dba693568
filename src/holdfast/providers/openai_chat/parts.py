"""Encodes and decodes the parts of a message in Chat Completions: content, and OpenRouter's reasoning details.

A part with anything we do not know is carried as its bytes, without its cache breakpoint.
"""

import msgspec

from holdfast.providers.json_splice import decode_or_none, encode_string, get_string_member, remove_member, split_object
from holdfast.providers.openai_chat.parameters import ChatVariant
from holdfast.providers.openai_common import decode_image_url, encode_image_url
from holdfast.types.blocks import FileSource, Image, Opaque, RedactedThinking, Text, Thinking
from holdfast.types.prompt import Ttl

MESSAGE_KIND = "message."
"""Another member of the message itself; its bytes are the member's value."""

REASONING_KIND = "reasoning_details."
CALL_KIND = "tool_calls."
NON_CONTENT_KINDS = (MESSAGE_KIND, REASONING_KIND, CALL_KIND)
REASONING_DETAILS = "reasoning_details"
Reasoning = Thinking | RedactedThinking | Opaque
ChatPart = Text | Image | Opaque
_KNOWN = frozenset({"text", "image_url", "file"})

# Formats whose details keep their meaning without the members `format` and `index`.
_PLAIN_FORMATS = (None, "unknown", "anthropic-claude-v1")


class _Text(msgspec.Struct, frozen=True):
    text: str


class _Breakpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: str | None = None
    type: str | None = None
    ttl: str | None = None


_decode_text = msgspec.json.Decoder(_Text).decode
_decode_breakpoint_or_null = msgspec.json.Decoder(_Breakpoint | None).decode
_decode_breakpoint = msgspec.json.Decoder(_Breakpoint).decode


def encode_chat_part(part: ChatPart) -> bytes:
    match part:
        case Text(text=text):
            return b'{"type":"text","text":' + encode_string(text) + b"}"
        case Image(source=FileSource(file_id=file_id)):
            return b'{"type":"file","file":{"file_id":' + encode_string(file_id) + b"}}"
        case Image(source=source):
            return b'{"type":"image_url","image_url":{"url":' + encode_string(encode_image_url(source)) + b"}}"
        case Opaque(raw=raw):
            return raw


def accepts_chat_breakpoint(part: ChatPart, variant: ChatVariant) -> bool:
    """Whether the provider accepts a breakpoint on it."""
    match part:
        case Text(text=text):
            return bool(text.strip())
        case Image(source=FileSource()):
            return "file" in variant.parts_with_breakpoints
        case Image():
            return "image_url" in variant.parts_with_breakpoints
        case Opaque(kind="text", raw=raw):
            decoded = decode_or_none(_decode_text, raw)
            return decoded is not None and bool(decoded.text.strip())
        case Opaque(kind=kind):
            return kind in variant.parts_with_breakpoints


def decode_chat_part(raw: bytes, variant: ChatVariant) -> tuple[ChatPart, Ttl | None]:
    """The part, and the TTL of its breakpoint. Raises msgspec's errors, which never quote a value."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    if kind.startswith(NON_CONTENT_KINDS):
        raise msgspec.ValidationError("a part of this type is not allowed in content - at `$.type`")
    raw_breakpoint = members.pop(variant.breakpoint_name, None)
    ttl = None if raw_breakpoint is None else _breakpoint_ttl(raw_breakpoint, variant)
    # Every known type has one member, with the name of the type.
    known = _decode_known(kind, members) if kind in _KNOWN and members.keys() == {"type", kind} else None
    return known or Opaque(kind, raw if raw_breakpoint is None else remove_member(raw, variant.breakpoint_name)), ttl


def _decode_known(kind: str, members: dict[str, bytes]) -> ChatPart | None:
    """None if the image or file has a field that we do not know."""
    if kind == "text":
        return Text(get_string_member(members, "text"))
    inner = split_object(members[kind])
    if kind == "image_url" and inner.keys() == {"url"}:
        return Image(decode_image_url(get_string_member(inner, "url")))
    if kind == "file" and inner.keys() == {"file_id"}:
        return Image(FileSource(get_string_member(inner, "file_id")))
    return None


def _breakpoint_ttl(raw: bytes, variant: ChatVariant) -> Ttl | None:
    point = _decode_breakpoint_or_null(raw)
    if point is None:
        return None
    default_ttl = next(iter(variant.breakpoints))
    for ttl, encoded in variant.breakpoints.items():
        expected = msgspec.structs.replace(_decode_breakpoint(encoded), ttl=point.ttl)
        if (point.ttl or default_ttl) == ttl and point == expected:
            return ttl
    raise msgspec.ValidationError(f"`{variant.breakpoint_name}` must ask for {' or '.join(variant.breakpoints)}")


class _Detail(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    signature: str | None = None
    data: str | None = None
    format: str | None = None


_decode_detail = msgspec.json.Decoder(_Detail).decode


def encode_reasoning_detail(block: Reasoning) -> bytes:
    match block:
        case Thinking(text=text, signature=signature):
            signature_member = b"" if signature is None else b',"signature":' + encode_string(signature)
            return b'{"type":"reasoning.text","text":%b%b}' % (encode_string(text), signature_member)
        case RedactedThinking(data=encrypted):
            return b'{"type":"reasoning.encrypted","data":' + encode_string(encrypted) + b"}"
        case Opaque(raw=raw):
            return raw


def decode_request_detail(raw: bytes) -> Reasoning:
    """A detail of a request."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    names = members.keys() - {"type"}
    if kind == "reasoning.text" and names in ({"text"}, {"text", "signature"}) and b"null" not in members.values():
        signature = get_string_member(members, "signature") if "signature" in names else None
        return Thinking(get_string_member(members, "text"), signature)
    if kind == "reasoning.encrypted" and names == {"data"}:
        return RedactedThinking(get_string_member(members, "data"))
    return Opaque(REASONING_KIND + kind, raw)


def decode_response_detail(raw: bytes) -> Reasoning:
    """A detail of a response, where every one has a format and an index."""
    detail = _decode_detail(raw)
    if detail.format in _PLAIN_FORMATS:
        if detail.type == "reasoning.text":
            return Thinking(detail.text or "", detail.signature or None)
        if detail.type == "reasoning.encrypted" and detail.data is not None:
            return RedactedThinking(detail.data)
    return Opaque(REASONING_KIND + detail.type, raw)
