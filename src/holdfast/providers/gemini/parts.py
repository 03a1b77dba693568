"""How one block reads as a part of Gemini's contents, and which block such bytes are.

A signature stands on the part behind the thinking that it signs. A part that carries anything we do not know
stays the bytes it was, its signature included.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.canonical.blocks import (
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
from holdfast.providers.members import quoted, read_string, spliced, take_apart

SIGNATURE = "thoughtSignature"
RESPONSE = "response"
"""The kind of an opaque part that is the whole response of a result, kept as it came."""

FILES = "https://generativelanguage.googleapis.com/v1beta/files/"
"""In front of the name of every file that was uploaded to the provider."""

_CALL_MEMBERS = frozenset({"id", "name", "args"})
_RESULT_MEMBERS = frozenset({"id", "name", "response", "parts"})
_SIGNED_KINDS = (Text, Image, ToolUse)

_decode_optional_string = msgspec.json.Decoder(str | None).decode
_decode_parts = msgspec.json.Decoder(tuple[msgspec.Raw, ...] | None).decode


def spell_parts(content: Sequence[Block]) -> Iterator[bytes]:
    """The parts of a lowered message."""
    signature: str | None = None
    for at, block in enumerate(content):
        behind = content[at + 1] if at + 1 < len(content) else None
        if isinstance(block, Thinking):
            signature = block.signature
            if block.text:
                yield b'{"text":%b,"thought":true}' % quoted(block.text)
            if signature is not None and not isinstance(behind, _SIGNED_KINDS):
                yield b'{"text":""%b}' % _signed(signature)
        else:
            yield _spell_part(block, _signed(signature))
            signature = None


def _signed(signature: str | None) -> bytes:
    return b"" if signature is None else b',"thoughtSignature":' + quoted(signature)


def _spell_part(block: Block, signed: bytes) -> bytes:
    match block:
        case Text(text=text):
            return b'{"text":%b%b}' % (quoted(text), signed)
        case Image(source=source):
            return b"{%b%b}" % (_spell_source(source), signed)
        case ToolUse():
            return b'{"functionCall":{"id":%b,"name":%b,"args":%b}%b}' % (
                quoted(block.id),
                quoted(block.name),
                spliced(block.arguments_json),
                signed,
            )
        case ToolResult():
            return _spell_result(block)
        case Opaque(raw=raw):
            return raw
        case Thinking() | RedactedThinking():
            raise AssertionError("thinking is spelled with the part behind it")


def _spell_source(source: Base64Source | UrlSource | FileSource) -> bytes:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return b'"inlineData":{"mimeType":%b,"data":%b}' % (quoted(media_type), quoted(encoded))
        case UrlSource() | FileSource():
            return b'"fileData":{"fileUri":%b}' % quoted(uri_of(source))


def uri_of(source: UrlSource | FileSource) -> str:
    """A file goes by its name, bare or behind `files/`, or by its address."""
    match source:
        case UrlSource(url=url):
            return url
        case FileSource(file_id=file_id):
            return file_id if file_id.startswith("https://") else FILES + file_id.removeprefix("files/")


def source_at(uri: str) -> UrlSource | FileSource:
    return FileSource("files/" + uri.removeprefix(FILES)) if uri.startswith(FILES) else UrlSource(uri)


def _spell_result(result: ToolResult) -> bytes:
    head, *media = result.content
    if isinstance(head, Text):
        response = b'{"%b":%b}' % (b"error" if result.is_error else b"result", quoted(head.text))
    else:
        response = _spell_part(head, b"")
    parts = b',"parts":[%b]' % b",".join(_spell_part(part, b"") for part in media) if media else b""
    return b'{"functionResponse":{"id":%b,"name":%b,"response":%b%b}}' % (
        quoted(result.tool_use_id),
        quoted(result.name),
        response,
        parts,
    )


def sign(blocks: list[Block], signature: str) -> None:
    """Give a part's signature to the thinking in front of it, which may be none but the signature."""
    before = blocks[-1] if blocks else None
    if isinstance(before, Thinking) and before.signature is None:
        blocks[-1] = Thinking(before.text, signature)
    else:
        blocks.append(Thinking("", signature))


def read_part(raw: bytes) -> tuple[Block, str | None]:
    """The block of a part, and the signature on it. A call or result without an id has an empty one.

    Raises msgspec's errors; they never quote a value.
    """
    members = take_apart(raw)
    signature = _read_optional(members, SIGNATURE) or None
    names = members.keys() - {SIGNATURE}
    block: Block | None = None
    if names == {"text"}:
        block = Text(read_string(members, "text"))
    elif names == {"text", "thought"} and members["thought"] == b"true" and signature is None:
        block = Thinking(read_string(members, "text"))
    elif len(names) == 1:
        block = _read_known(names.pop(), members, signature)
    if block is None:
        return Opaque(kind_in(members), raw), None
    return block, signature


def kind_in(members: dict[str, bytes]) -> str:
    """What a part that we do not know calls itself; empty for one that says nothing."""
    if members.get("type", b"").startswith(b'"'):
        return read_string(members, "type")
    return next((name for name in members if name != SIGNATURE), "")


def _read_optional(members: dict[str, bytes], name: str) -> str:
    return _decode_optional_string(members.get(name, b"null")) or ""


def _read_known(name: str, members: dict[str, bytes], signature: str | None) -> Block | None:
    """None where the part is of a kind, or has a field, that we do not know."""
    match name:
        case "inlineData" | "fileData":
            return _read_image(members)
        case "functionCall":
            call = take_apart(members[name])
            if not call.keys() <= _CALL_MEMBERS:
                return None
            arguments = call.get("args", b"null")
            spelled = "{}" if arguments == b"null" else arguments.decode()
            return ToolUse(_read_optional(call, "id"), read_string(call, "name"), spelled)
        case "functionResponse" if signature is None:
            result = take_apart(members[name])
            return _read_result(result) if result.keys() <= _RESULT_MEMBERS else None
        case _:
            return None


def _read_image(members: dict[str, bytes]) -> Image | None:
    if "fileData" in members:
        file = take_apart(members["fileData"])
        return Image(source_at(read_string(file, "fileUri"))) if file.keys() == {"fileUri"} else None
    blob = take_apart(members["inlineData"])
    if blob.keys() != {"mimeType", "data"}:
        return None
    media_type = read_string(blob, "mimeType")
    return Image(Base64Source(media_type, read_string(blob, "data"))) if media_type.startswith("image/") else None


def _read_result(result: dict[str, bytes]) -> ToolResult:
    raw = result.get("response", b"{}")
    response = take_apart(raw)
    told = next(iter(response), "")
    head: Text | Opaque = Opaque(RESPONSE, raw)
    if len(response) == 1 and told in ("result", "error") and response[told].startswith(b'"'):
        head = Text(read_string(response, told))
    media = (_read_media(bytes(part)) for part in _decode_parts(result.get("parts", b"null")) or ())
    return ToolResult(
        _read_optional(result, "id"),
        (head, *media),
        is_error="error" in response,
        name=_read_optional(result, "name"),
    )


def _read_media(raw: bytes) -> Image | Opaque:
    members = take_apart(raw)
    block = _read_image(members) if members.keys() in ({"inlineData"}, {"fileData"}) else None
    return Opaque(kind_in(members), raw) if block is None else block
