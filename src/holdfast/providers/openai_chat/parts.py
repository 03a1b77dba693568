"""Encodes and decodes the parts of a message's content in Chat Completions.

A part with anything we do not know is carried as its bytes, without its cache breakpoint.
"""

import re

import msgspec

from holdfast.canonical.blocks import Base64Source, FileSource, Image, Opaque, Text, UrlSource
from holdfast.canonical.prompt import Ttl
from holdfast.providers.members import quoted, read_string, take_apart, without
from holdfast.providers.openai_chat.flavour import Flavour
from holdfast.providers.openai_chat.kinds import BESIDE_CONTENT

Part = Text | Image | Opaque

_DATA_URL = re.compile(r"data:(.*?);base64,(.*)", re.DOTALL)

_KNOWN = frozenset({"text", "image_url", "file"})


class _Text(msgspec.Struct, frozen=True):
    text: str


class _Breakpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: str | None = None
    type: str | None = None
    ttl: str | None = None


_decode_text = msgspec.json.Decoder(_Text).decode
_decode_breakpoint_or_null = msgspec.json.Decoder(_Breakpoint | None).decode
_decode_breakpoint = msgspec.json.Decoder(_Breakpoint).decode


def spell_part(part: Part) -> bytes:
    match part:
        case Text(text=text):
            return b'{"type":"text","text":' + quoted(text) + b"}"
        case Image(source=FileSource(file_id=file_id)):
            return b'{"type":"file","file":{"file_id":' + quoted(file_id) + b"}}"
        case Image(source=source):
            return b'{"type":"image_url","image_url":{"url":' + quoted(_url_of(source)) + b"}}"
        case Opaque(raw=raw):
            return raw


def plain_image(image: Image) -> Image:
    """The image as it will be decoded again: a data URL and base64 data have the same encoding."""
    return image if isinstance(image.source, FileSource) else Image(_source_of(_url_of(image.source)))


def _url_of(source: Base64Source | UrlSource | FileSource) -> str:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return f"data:{media_type};base64,{encoded}"
        case UrlSource(url=url):
            return url
        case FileSource(file_id=file_id):
            return file_id


def _source_of(url: str) -> Base64Source | UrlSource:
    inline = _DATA_URL.fullmatch(url)
    return Base64Source(inline[1], inline[2]) if inline else UrlSource(url)


def is_markable(part: Part, flavour: Flavour) -> bool:
    """Whether the provider accepts a breakpoint on it."""
    match part:
        case Text(text=text):
            return bool(text.strip())
        case Image(source=FileSource()):
            return "file" in flavour.markable_parts
        case Image():
            return "image_url" in flavour.markable_parts
        case Opaque(kind="text", raw=raw):
            return _has_text(raw)
        case Opaque(kind=kind):
            return kind in flavour.markable_parts


def _has_text(raw: bytes) -> bool:
    try:
        return bool(_decode_text(raw).text.strip())
    except (msgspec.MsgspecError, UnicodeError):
        return False


def read_part(raw: bytes, flavour: Flavour) -> tuple[Part, Ttl | None]:
    """The part, and the TTL of its breakpoint. Raises msgspec's errors, which never quote a value."""
    members = take_apart(raw)
    kind = read_string(members, "type")
    if kind.startswith(BESIDE_CONTENT):
        raise msgspec.ValidationError("a part of this type is not allowed in content - at `$.type`")
    raw_breakpoint = members.pop(flavour.mark_name, None)
    ttl = None if raw_breakpoint is None else _breakpoint_ttl(raw_breakpoint, flavour)
    # Every known type has one member, with the name of the type.
    known = _decode_known(kind, members) if kind in _KNOWN and members.keys() == {"type", kind} else None
    return known or Opaque(kind, raw if raw_breakpoint is None else without(raw, flavour.mark_name)), ttl


def _decode_known(kind: str, members: dict[str, bytes]) -> Part | None:
    """None if the image or file has a field that we do not know."""
    if kind == "text":
        return Text(read_string(members, "text"))
    inner = take_apart(members[kind])
    if kind == "image_url" and inner.keys() == {"url"}:
        return Image(_source_of(read_string(inner, "url")))
    if kind == "file" and inner.keys() == {"file_id"}:
        return Image(FileSource(read_string(inner, "file_id")))
    return None


def _breakpoint_ttl(raw: bytes, flavour: Flavour) -> Ttl | None:
    point = _decode_breakpoint_or_null(raw)
    if point is None:
        return None
    default_ttl = next(iter(flavour.marks))
    for ttl, encoded in flavour.marks.items():
        expected = msgspec.structs.replace(_decode_breakpoint(encoded), ttl=point.ttl)
        if (point.ttl or default_ttl) == ttl and point == expected:
            return ttl
    raise msgspec.ValidationError(f"`{flavour.mark_name}` must ask for {' or '.join(flavour.marks)}")
