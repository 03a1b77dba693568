"""Encodes and decodes blocks as the parts of Gemini's contents.

The signature of a thought is on the part after it. A part with anything we do not know is carried as its bytes,
including its signature.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.providers.json_splice import (
    encode_json_text,
    encode_string,
    get_optional_string,
    get_string_member,
    split_object,
)
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)

SIGNATURE_FIELD = "thoughtSignature"
RESPONSE_KIND = "response"
"""The kind of an opaque part that is a tool result's whole response, carried as its bytes."""

FILES_URI_PREFIX = "https://generativelanguage.googleapis.com/v1beta/files/"
"""The URI prefix of every file that was uploaded to the provider."""

_CALL_MEMBERS = frozenset({"id", "name", "args"})
_RESULT_MEMBERS = frozenset({"id", "name", "response", "parts"})
# Parts that can carry the signature of the thinking before them.
_SIGNED_KINDS = (Text, Image, ToolUse)
_decode_parts = msgspec.json.Decoder(tuple[msgspec.Raw, ...] | None).decode


def encode_gemini_parts(content: Sequence[Block]) -> Iterator[bytes]:
    """The parts of a lowered entry."""
    signature: str | None = None
    for index, block in enumerate(content):
        following = content[index + 1] if index + 1 < len(content) else None
        if isinstance(block, Thinking):
            signature = block.signature
            if block.text:
                yield b'{"text":%b,"thought":true}' % encode_string(block.text)
            if signature is not None and not isinstance(following, _SIGNED_KINDS):
                yield b'{"text":""%b}' % _signature_member(signature)
        else:
            yield _encode_part(block, _signature_member(signature))
            signature = None


def _signature_member(signature: str | None) -> bytes:
    return b"" if signature is None else b',"thoughtSignature":' + encode_string(signature)


def _encode_part(block: Block, signature_member: bytes) -> bytes:
    match block:
        case Text(text=text):
            return b'{"text":%b%b}' % (encode_string(text), signature_member)
        case Image(source=source):
            return b"{%b%b}" % (_encode_source(source), signature_member)
        case ToolUse():
            id, name, arguments = encode_string(block.id), encode_string(block.name), block.arguments_json
            template = b'{"functionCall":{"id":%b,"name":%b,"args":%b}%b}'
            return template % (id, name, encode_json_text(arguments), signature_member)
        case ToolResult():
            return _encode_result(block)
        case Opaque(raw=raw):
            return raw
        case Thinking() | RedactedThinking():
            raise AssertionError("thinking is encoded together with the part after it")


def _encode_source(source: Base64Source | UrlSource | FileSource) -> bytes:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return b'"inlineData":{"mimeType":%b,"data":%b}' % (encode_string(media_type), encode_string(encoded))
        case UrlSource() | FileSource():
            return b'"fileData":{"fileUri":%b}' % encode_string(source_uri(source))


def source_uri(source: UrlSource | FileSource) -> str:
    """A file id is a name, with or without `files/`, or a full URI."""
    match source:
        case UrlSource(url=url):
            return url
        case FileSource(file_id=file_id):
            return file_id if file_id.startswith("https://") else FILES_URI_PREFIX + file_id.removeprefix("files/")


def source_from_uri(uri: str) -> UrlSource | FileSource:
    is_file = uri.startswith(FILES_URI_PREFIX)
    return FileSource("files/" + uri.removeprefix(FILES_URI_PREFIX)) if is_file else UrlSource(uri)


def _encode_result(result: ToolResult) -> bytes:
    head, *media = result.content
    if isinstance(head, Text):
        response = b'{"%b":%b}' % (b"error" if result.is_error else b"result", encode_string(head.text))
    else:
        response = _encode_part(head, b"")
    parts = b',"parts":[%b]' % b",".join(_encode_part(part, b"") for part in media) if media else b""
    id, name = encode_string(result.tool_use_id), encode_string(result.name)
    return b'{"functionResponse":{"id":%b,"name":%b,"response":%b%b}}' % (id, name, response, parts)


def attach_signature(blocks: list[Block], signature: str) -> None:
    """Attach a part's signature to the thinking before it; without any, add an empty thinking block for it."""
    last = blocks[-1] if blocks else None
    if isinstance(last, Thinking) and last.signature is None:
        blocks[-1] = Thinking(last.text, signature)
    else:
        blocks.append(Thinking("", signature))


def decode_gemini_part(raw: bytes) -> tuple[Block, str | None]:
    """The block of a part, and its signature. A call or result without an id gets an empty one.

    Raises msgspec's errors, which never quote a value.
    """
    members = split_object(raw)
    signature = get_optional_string(members, SIGNATURE_FIELD) or None
    names = members.keys() - {SIGNATURE_FIELD}
    block: Block | None = None
    if names == {"text"}:
        block = Text(get_string_member(members, "text"))
    elif names == {"text", "thought"} and members["thought"] == b"true" and signature is None:
        block = Thinking(get_string_member(members, "text"))
    elif len(names) == 1:
        block = _decode_known(names.pop(), members, signature)
    if block is None:
        return Opaque(opaque_part_kind(members), raw), None
    return block, signature


def opaque_part_kind(members: dict[str, bytes]) -> str:
    """The type of a part that we do not know: its `type`, or the name of its first member; empty if it has none."""
    if members.get("type", b"").startswith(b'"'):
        return get_string_member(members, "type")
    return next((name for name in members if name != SIGNATURE_FIELD), "")


def _decode_known(name: str, members: dict[str, bytes], signature: str | None) -> Block | None:
    """None if the part has a type or a field that we do not know."""
    match name:
        case "inlineData" | "fileData":
            return _decode_image(members)
        case "functionCall":
            call = split_object(members[name])
            if not call.keys() <= _CALL_MEMBERS:
                return None
            arguments = call.get("args", b"null")
            arguments_json = "{}" if arguments == b"null" else arguments.decode()
            return ToolUse(get_optional_string(call, "id"), get_string_member(call, "name"), arguments_json)
        case "functionResponse" if signature is None:
            result = split_object(members[name])
            return _decode_result(result) if result.keys() <= _RESULT_MEMBERS else None
        case _:
            return None


def _decode_image(members: dict[str, bytes]) -> Image | None:
    if "fileData" in members:
        file = split_object(members["fileData"])
        return Image(source_from_uri(get_string_member(file, "fileUri"))) if file.keys() == {"fileUri"} else None
    blob = split_object(members["inlineData"])
    if blob.keys() != {"mimeType", "data"}:
        return None
    media_type = get_string_member(blob, "mimeType")
    return Image(Base64Source(media_type, get_string_member(blob, "data"))) if media_type.startswith("image/") else None


def _decode_result(result: dict[str, bytes]) -> ToolResult:
    raw = result.get("response", b"{}")
    response = split_object(raw)
    member = next(iter(response), "")
    head: Text | Opaque = Opaque(RESPONSE_KIND, raw)
    if len(response) == 1 and member in ("result", "error") and response[member].startswith(b'"'):
        head = Text(get_string_member(response, member))
    media = (_decode_media(bytes(part)) for part in _decode_parts(result.get("parts", b"null")) or ())
    id, name = get_optional_string(result, "id"), get_optional_string(result, "name")
    return ToolResult(id, (head, *media), is_error="error" in response, name=name)


def _decode_media(raw: bytes) -> Image | Opaque:
    members = split_object(raw)
    block = _decode_image(members) if members.keys() in ({"inlineData"}, {"fileData"}) else None
    return Opaque(opaque_part_kind(members), raw) if block is None else block
