"""Encodes and decodes content blocks in Anthropic's format.

A block with anything we do not know is carried as its bytes, without its cache breakpoint.
"""

import msgspec

from holdfast.providers.json_splice import (
    decode_or_none,
    encode_json_text,
    encode_string,
    get_string_member,
    remove_member,
    split_object,
)
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Json,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.prompt import Ttl

CACHE_CONTROL = "cache_control"

_FIELDS = {
    "text": frozenset({"text"}),
    "image": frozenset({"source"}),
    "tool_use": frozenset({"id", "name", "input"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error"}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
}

_SOURCE_FIELDS = {
    "base64": frozenset({"type", "media_type", "data"}),
    "url": frozenset({"type", "url"}),
    "file": frozenset({"type", "file_id"}),
}

# Members that the provider adds to known blocks; with one of these values they can be dropped.
_DEFAULT_VALUES: dict[tuple[str, str], tuple[Json, ...]] = {
    ("text", "citations"): (None, []),
    ("image", "transformations"): (None, {}),
    ("tool_use", "caller"): (None, {"type": "direct"}),
    ("tool_use", "toolset_name"): (None,),
    ("tool_result", "toolset_name"): (None,),
}

# Anthropic, "Prompt caching": no breakpoints on thinking blocks, on sub-blocks such as citations, or on empty text.
_CACHEABLE_KINDS = frozenset({"text", "image", "tool_use", "tool_result", "document", "search_result"})


class _Text(msgspec.Struct, frozen=True):
    text: str


class _ToolUse(msgspec.Struct, frozen=True):
    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _ToolResult(msgspec.Struct, frozen=True):
    tool_use_id: str
    content: str | tuple[msgspec.Raw, ...] = ()
    is_error: bool = False


class _Thinking(msgspec.Struct, frozen=True):
    thinking: str
    signature: str | None = None


class _RedactedThinking(msgspec.Struct, frozen=True):
    data: str


class _CacheControl(msgspec.Struct, frozen=True):
    type: str
    ttl: str = "5m"


_decode_text = msgspec.json.Decoder(_Text).decode
_decode_tool_use = msgspec.json.Decoder(_ToolUse).decode
_decode_tool_result = msgspec.json.Decoder(_ToolResult).decode


def encode_anthropic_block(block: Block) -> bytes:
    match block:
        case Text(text=text):
            return b'{"type":"text","text":' + encode_string(text) + b"}"
        case Image(source=source):
            return b'{"type":"image","source":' + _encode_source(source) + b"}"
        case ToolUse():
            return b'{"type":"tool_use","id":%b,"name":%b,"input":%b}' % (
                encode_string(block.id),
                encode_string(block.name),
                encode_json_text(block.arguments_json),
            )
        case ToolResult():
            return b'{"type":"tool_result","tool_use_id":%b,"content":[%b]%b}' % (
                encode_string(block.tool_use_id),
                b",".join(encode_anthropic_block(part) for part in block.content),
                b',"is_error":true' if block.is_error else b"",
            )
        case Thinking(text=text, signature=signature):
            signature_member = b"" if signature is None else b',"signature":' + encode_string(signature)
            return b'{"type":"thinking","thinking":%b%b}' % (encode_string(text), signature_member)
        case RedactedThinking(data=encrypted):
            return b'{"type":"redacted_thinking","data":' + encode_string(encrypted) + b"}"
        case Opaque(raw=raw):
            return raw


def _encode_source(source: Base64Source | UrlSource | FileSource) -> bytes:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return b'{"type":"base64","media_type":%b,"data":%b}' % (encode_string(media_type), encode_string(encoded))
        case UrlSource(url=url):
            return b'{"type":"url","url":' + encode_string(url) + b"}"
        case FileSource(file_id=file_id):
            return b'{"type":"file","file_id":' + encode_string(file_id) + b"}"


def accepts_anthropic_breakpoint(block: Block) -> bool:
    """Whether the provider accepts a breakpoint on it."""
    match block:
        case Text(text=text):
            return not is_blank_text(text)
        case Image() | ToolUse() | ToolResult():
            return True
        case Thinking() | RedactedThinking():
            return False
        case Opaque(kind="text", raw=raw):
            decoded = decode_or_none(_decode_text, raw)
            return decoded is not None and not is_blank_text(decoded.text)
        case Opaque(kind=kind):
            return kind in _CACHEABLE_KINDS


def is_blank_text(text: str) -> bool:
    return not text.strip()


def decode_anthropic_block(raw: bytes) -> tuple[Block, Ttl | None]:
    """The block, and the TTL of its breakpoint. Raises msgspec's errors, which never quote a value."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    ttl = decode_cache_control(members)
    names = {name for name in members if name not in ("type", CACHE_CONTROL) and not _is_default(kind, name, members)}
    block: Block | None = None
    if kind in _FIELDS and names <= _FIELDS[kind]:
        if kind == "tool_result":
            return _decode_result(raw, ttl)
        block = _decode_known(kind, raw, members)
    return block or _carry(raw, members), ttl


def _carry(raw: bytes, members: dict[str, bytes]) -> Opaque:
    return Opaque(
        get_string_member(members, "type"), remove_member(raw, CACHE_CONTROL) if CACHE_CONTROL in members else raw
    )


def decode_cache_control(members: dict[str, bytes]) -> Ttl | None:
    if CACHE_CONTROL not in members:
        return None
    control = msgspec.json.decode(members[CACHE_CONTROL], type=_CacheControl | None)
    if control is None:
        return None
    if control.type == "ephemeral" and control.ttl == "5m":
        return "5m"
    if control.type == "ephemeral" and control.ttl == "1h":
        return "1h"
    raise msgspec.ValidationError(f'`{CACHE_CONTROL}` must be "ephemeral" for "5m" or "1h"')


def _is_default(kind: str, name: str, members: dict[str, bytes]) -> bool:
    values = _DEFAULT_VALUES.get((kind, name))
    return values is not None and msgspec.json.decode(members[name]) in values


def _decode_known(kind: str, raw: bytes, members: dict[str, bytes]) -> Block | None:
    match kind:
        case "text":
            return Text(_decode_text(raw).text)
        case "image":
            return _decode_image(members)
        case "tool_use":
            call = _decode_tool_use(raw)
            return ToolUse(call.id, call.name, bytes(call.input).decode())
        case "thinking":
            thinking = msgspec.json.decode(raw, type=_Thinking)
            return Thinking(thinking.thinking, thinking.signature)
        case _:
            return RedactedThinking(msgspec.json.decode(raw, type=_RedactedThinking).data)


def _decode_image(members: dict[str, bytes]) -> Image | None:
    """None if the source has a type or a field that we do not know."""
    if "source" not in members:
        raise msgspec.ValidationError("Object missing required field `source`")
    source = split_object(members["source"])
    kind = get_string_member(source, "type")
    if _SOURCE_FIELDS.get(kind) != frozenset(source):
        return None
    match kind:
        case "base64":
            return Image(Base64Source(get_string_member(source, "media_type"), get_string_member(source, "data")))
        case "url":
            return Image(UrlSource(get_string_member(source, "url")))
        case _:
            return Image(FileSource(get_string_member(source, "file_id")))


def _decode_result(raw: bytes, ttl: Ttl | None) -> tuple[ToolResult, Ttl | None]:
    """A breakpoint inside the result is moved to its end, the nearest position an encoded block has."""
    result = _decode_tool_result(raw)
    content: list[Text | Image | Opaque] = []
    inner_ttl: Ttl | None = None
    if isinstance(result.content, str):
        content.append(Text(result.content))
    else:
        for part in result.content:
            block, part_ttl = _decode_part(bytes(part))
            content.append(block)
            inner_ttl = part_ttl or inner_ttl
    return ToolResult(result.tool_use_id, tuple(content), result.is_error), ttl or inner_ttl


def _decode_part(raw: bytes) -> tuple[Text | Image | Opaque, Ttl | None]:
    members = split_object(raw)
    if get_string_member(members, "type") in ("text", "image"):
        block, ttl = decode_anthropic_block(raw)
        if isinstance(block, Text | Image | Opaque):
            return block, ttl
    return _carry(raw, members), decode_cache_control(members)
