"""Encodes and decodes the content parts of messages in the Responses API.

A part with anything we do not know is carried as its bytes, without its cache breakpoint.
"""

from collections.abc import Mapping

import msgspec

from holdfast.providers.json_splice import encode_string, get_string_member, remove_member, split_object
from holdfast.providers.openai_common import decode_image_url, encode_image_url
from holdfast.types.blocks import FileSource, Image, Json, Opaque, Text
from holdfast.types.prompt import Ttl

CACHE_BREAKPOINT = "prompt_cache_breakpoint"

OUTPUT_KINDS = frozenset({"output_text", "refusal"})
"""Part types that an assistant message can have."""

# OpenAI, "Prompt caching": breakpoints on text, image and file input, not on tools or `instructions`.
_CACHEABLE_KINDS = frozenset({"input_text", "input_image", "input_file"})

# Members that the provider adds; with one of these values they can be dropped.
_DEFAULT_VALUES: dict[str, tuple[Json, ...]] = {
    "annotations": (None, []),
    "async": (None, False),
    "caller": (None, {"type": "direct"}),
    "content": (None, []),
    "detail": (None, "auto"),
    "file_id": (None,),
    "image_url": (None,),
    "logprobs": (None, []),
    "namespace": (None,),
    "phase": (None,),
}

InputPart = Text | Image | Opaque


class _Breakpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: str
    ttl: str | None = None


def encode_input_part(part: InputPart) -> bytes:
    match part:
        case Text(text=text):
            return b'{"type":"input_text","text":' + encode_string(text) + b"}"
        case Image(source=FileSource(file_id=file_id)):
            return b'{"type":"input_image","file_id":%b,"detail":"auto"}' % encode_string(file_id)
        case Image(source=source):
            return b'{"type":"input_image","image_url":%b,"detail":"auto"}' % encode_string(encode_image_url(source))
        case Opaque(raw=raw):
            return raw.strip()


def encode_output_part(part: Text | Opaque) -> bytes:
    if isinstance(part, Text):
        return b'{"type":"output_text","text":' + encode_string(part.text) + b',"annotations":[]}'
    return part.raw.strip()


def accepts_responses_breakpoint(part: InputPart) -> bool:
    """Whether the provider accepts a breakpoint on it, as an input part."""
    match part:
        case Text(text=text):
            return bool(text.strip())
        case Image():
            return True
        case Opaque(kind=kind):
            return kind in _CACHEABLE_KINDS


def non_default_names(members: Mapping[str, bytes], *ignored: str) -> set[str]:
    """The names of the members with a value other than the default, except the type and the ignored ones."""
    return {name for name in members if name not in ("type", *ignored) and not _is_default(name, members[name])}


def _is_default(name: str, value: bytes) -> bool:
    return name in _DEFAULT_VALUES and msgspec.json.decode(value) in _DEFAULT_VALUES[name]


def decode_input_part(raw: bytes) -> tuple[InputPart, Ttl | None]:
    """The part, and the TTL of its breakpoint. Raises msgspec's errors, which never quote a value."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    ttl = _breakpoint_ttl(members)
    names = non_default_names(members, CACHE_BREAKPOINT)
    if kind == "input_text" and names == {"text"}:
        return Text(get_string_member(members, "text")), ttl
    if kind == "input_image" and names == {"image_url"}:
        return Image(decode_image_url(get_string_member(members, "image_url"))), ttl
    if kind == "input_image" and names == {"file_id"}:
        return Image(FileSource(get_string_member(members, "file_id"))), ttl
    return Opaque(kind, remove_member(raw, CACHE_BREAKPOINT) if CACHE_BREAKPOINT in members else raw), ttl


def decode_output_part(raw: bytes) -> Text | Opaque:
    """A part of an assistant message. Some clients send its text back as `input_text`."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    if kind in ("output_text", "input_text") and non_default_names(members) == {"text"}:
        return Text(get_string_member(members, "text"))
    return Opaque(kind, raw)


def _breakpoint_ttl(members: Mapping[str, bytes]) -> Ttl | None:
    """A breakpoint without a TTL has the default of 30m (OpenAI, "Prompt caching")."""
    point = msgspec.json.decode(members.get(CACHE_BREAKPOINT, b"null"), type=_Breakpoint | None)
    if point is None:
        return None
    if point.mode == "explicit" and point.ttl in (None, "30m", "12h"):
        return "12h" if point.ttl == "12h" else "30m"
    raise msgspec.ValidationError(f'`{CACHE_BREAKPOINT}` must be "explicit", for "30m" or "12h"')
