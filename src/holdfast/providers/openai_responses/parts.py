"""How the parts of a message read on OpenAI's wire, and which block such bytes are.

A part that carries anything we do not know stays the bytes it was, less its cache mark.
"""

import re
from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import Base64Source, FileSource, Image, Json, Opaque, Text, UrlSource
from holdfast.canonical.prompt import Ttl
from holdfast.providers.members import quoted, read_string, take_apart, without

MARK = "prompt_cache_breakpoint"

OUTPUT_KINDS = frozenset({"output_text", "refusal"})
"""Parts that can stand in a message of the model's."""

_MARKABLE_KINDS = frozenset({"input_text", "input_image", "input_file"})
_DATA_URL = re.compile(r"data:(.*?);base64,(.*)", re.DOTALL)

# Members that the provider adds; with one of these values they say nothing.
_SILENT: dict[str, tuple[Json, ...]] = {
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

Part = Text | Image | Opaque


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: str
    ttl: str | None = None


def spell_input(part: Part) -> bytes:
    match part:
        case Text(text=text):
            return b'{"type":"input_text","text":' + quoted(text) + b"}"
        case Image(source=source):
            return b'{"type":"input_image",' + _spell_source(source) + b',"detail":"auto"}'
        case Opaque(raw=raw):
            return raw.strip()


def _spell_source(source: Base64Source | UrlSource | FileSource) -> bytes:
    if isinstance(source, FileSource):
        return b'"file_id":' + quoted(source.file_id)
    return b'"image_url":' + quoted(_url_of(source))


def spell_output(part: Text | Opaque) -> bytes:
    if isinstance(part, Text):
        return b'{"type":"output_text","text":' + quoted(part.text) + b',"annotations":[]}'
    return part.raw.strip()


def is_markable(part: Part) -> bool:
    """Whether the provider takes a cache mark on it, in what is said to the model."""
    match part:
        case Text(text=text):
            return bool(text.strip())
        case Image():
            return True
        case Opaque(kind=kind):
            return kind in _MARKABLE_KINDS


def _url_of(source: Base64Source | UrlSource) -> str:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return f"data:{media_type};base64,{encoded}"
        case UrlSource(url=url):
            return url


def _source_at(url: str) -> Base64Source | UrlSource:
    inline = _DATA_URL.fullmatch(url)
    return Base64Source(inline[1], inline[2]) if inline else UrlSource(url)


def lowered_image(image: Image) -> Image:
    """The wire knows but one kind of address, so a data URL is the same as its content."""
    if isinstance(image.source, FileSource):
        return image
    source = _source_at(_url_of(image.source))
    return image if source == image.source else Image(source)


def spoken_names(members: Mapping[str, bytes], *unheeded: str) -> set[str]:
    """The names of the members that say something, without the type and those named."""
    return {name for name in members if name not in ("type", *unheeded) and not _is_silent(name, members[name])}


def _is_silent(name: str, value: bytes) -> bool:
    return name in _SILENT and msgspec.json.decode(value) in _SILENT[name]


def read_input(raw: bytes) -> tuple[Part, Ttl | None]:
    """The part, and the lifetime of its mark. Raises msgspec's errors; they never quote a value."""
    members = take_apart(raw)
    kind = read_string(members, "type")
    ttl = _read_mark(members)
    names = spoken_names(members, MARK)
    if kind == "input_text" and names == {"text"}:
        return Text(read_string(members, "text")), ttl
    if kind == "input_image" and names == {"image_url"}:
        return Image(_source_at(read_string(members, "image_url"))), ttl
    if kind == "input_image" and names == {"file_id"}:
        return Image(FileSource(read_string(members, "file_id"))), ttl
    return Opaque(kind, without(raw, MARK) if MARK in members else raw), ttl


def read_output(raw: bytes) -> Text | Opaque:
    """A part of what the model said; clients may also send its text back as they send their own."""
    members = take_apart(raw)
    kind = read_string(members, "type")
    if kind in ("output_text", "input_text") and spoken_names(members) == {"text"}:
        return Text(read_string(members, "text"))
    return Opaque(kind, raw)


def _read_mark(members: Mapping[str, bytes]) -> Ttl | None:
    """A mark without a lifetime of its own has the shorter one."""
    mark = msgspec.json.decode(members.get(MARK, b"null"), type=_Mark | None)
    if mark is None:
        return None
    if mark.mode == "explicit" and mark.ttl in (None, "30m"):
        return "30m"
    if mark.mode == "explicit" and mark.ttl == "12h":
        return "12h"
    raise msgspec.ValidationError(f'`{MARK}` must be "explicit", for "30m" or "12h"')
