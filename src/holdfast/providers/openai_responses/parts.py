"""Encodes and decodes the content parts of messages in the Responses API.

A part with anything we do not know is carried as its bytes, without its cache breakpoint.
"""

import re
from collections.abc import Mapping

import msgspec

from holdfast.providers.json_splice import encode_string, get_string_member, remove_member, split_object
from holdfast.types.blocks import Base64Source, FileSource, Image, Json, Opaque, Text, UrlSource
from holdfast.types.prompt import Ttl

CACHE_BREAKPOINT = "prompt_cache_breakpoint"

OUTPUT_KINDS = frozenset({"output_text", "refusal"})
"""Part types that an assistant message can have."""

# OpenAI, "Prompt caching": breakpoints on text, image and file input, not on tools or `instructions`.
_CACHEABLE_KINDS = frozenset({"input_text", "input_image", "input_file"})
_DATA_URL = re.compile(r"data:(.*?);base64,(.*)", re.DOTALL)

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
        case Image(source=source):
            return b'{"type":"input_image",' + _encode_source(source) + b',"detail":"auto"}'
        case Opaque(raw=raw):
            return raw.strip()


def _encode_source(source: Base64Source | UrlSource | FileSource) -> bytes:
    if isinstance(source, FileSource):
        return b'"file_id":' + encode_string(source.file_id)
    return b'"image_url":' + encode_string(_url_of(source))


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


def _url_of(source: Base64Source | UrlSource) -> str:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return f"data:{media_type};base64,{encoded}"
        case UrlSource(url=url):
            return url


def _source_at(url: str) -> Base64Source | UrlSource:
    inline = _DATA_URL.fullmatch(url)
    return Base64Source(inline[1], inline[2]) if inline else UrlSource(url)


def normalize_responses_image(image: Image) -> Image:
    """The image as it will be decoded again: a data URL and base64 data have the same encoding."""
    if isinstance(image.source, FileSource):
        return image
    source = _source_at(_url_of(image.source))
    return image if source == image.source else Image(source)


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
        return Image(_source_at(get_string_member(members, "image_url"))), ttl
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
    if point.mode == "explicit" and point.ttl in (None, "30m"):
        return "30m"
    if point.mode == "explicit" and point.ttl == "12h":
        return "12h"
    raise msgspec.ValidationError(f'`{CACHE_BREAKPOINT}` must be "explicit", for "30m" or "12h"')
