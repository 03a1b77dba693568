"""Encodes history entries as input items of the Responses API, and decodes items.

A reasoning item becomes a thinking block whose signature holds what the text does not, so that nothing is lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from holdfast.providers.json_splice import (
    decode_or_none,
    encode_json_text,
    encode_string,
    get_optional_string,
    get_string_member,
    make_valid_arguments,
    split_object,
)
from holdfast.providers.openai_responses.parts import (
    OUTPUT_KINDS,
    accepts_responses_breakpoint,
    decode_input_part,
    decode_output_part,
    encode_input_part,
    encode_output_part,
    non_default_names,
)
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Role, Text, Thinking, ToolResult, ToolUse
from holdfast.types.json_encoding import canonical_json
from holdfast.types.prompt import HistoryEntry, Ttl
from holdfast.types.request_buffer import EncodedBlock, make_message_block

ITEM_START = b"{"
"""Starts a block that is a complete item: no other block continues it, and nothing has to be closed after it."""

WIRE_ROLES: dict[Role, str] = {"user": "user", "assistant": "assistant", "system": "developer"}
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

# Items that a caller sends. Any other unknown item is output of the model, unless it ends in `_output`.
_USER_ITEM_KINDS = frozenset(
    {"message", "mcp_approval_response", "item_reference", "additional_tools", "configuration_update"}
)

SUMMARY_SEPARATOR = "\n\n"


class DecodedItem(msgspec.Struct, frozen=True):
    """`ttls` holds the TTL of each block's breakpoint, or None; `fields` the members without a place of their own."""

    role: Role
    blocks: tuple[Block, ...]
    ttls: tuple[Ttl | None, ...]
    fields: tuple[tuple[str, str], ...] = ()


def message_start(role: str) -> bytes:
    return b'{"type":"message","role":"%b","content":[' % role.encode()


def _encode_fields(fields: tuple[tuple[str, str], ...]) -> bytes:
    return b"".join(b"%b:%b," % (encode_string(name), encode_json_text(value)) for name, value in fields)


def encode_responses_entry(entry: HistoryEntry) -> Iterator[EncodedBlock]:
    """One encoded block per block. Adjacent parts share a message; everything else is an item of its own."""
    start = message_start(WIRE_ROLES[entry.role])
    in_message = False
    for index, block in enumerate(entry.content):
        is_part, accepts = False, False
        match block:
            case ToolResult():
                container_start, data, accepts = _encode_result(block)
            case RedactedThinking():
                continue
            case ToolUse() | Thinking():
                container_start, data = ITEM_START, _encode_item(block).removeprefix(ITEM_START)
            case Opaque(kind=kind, raw=raw) if is_separate_item(entry.role, kind):
                container_start, data = ITEM_START, raw.strip().removeprefix(ITEM_START)
            case Text() | Image() | Opaque():
                container_start = b"" if in_message else start
                data, accepts = _encode_part(entry.role, block)
                is_part = True
        in_message = is_part
        if entry.fields and not index:
            # They come first in the item: in the data of a complete one, whose start has to stay as it is.
            members = _encode_fields(entry.fields)
            if container_start == ITEM_START:
                data = members + data
            else:
                container_start = ITEM_START + members + container_start.removeprefix(ITEM_START)
        yield make_message_block(entry, data, accepts_breakpoint=accepts, container_start=container_start)


def _encode_item(block: ToolUse | Thinking) -> bytes:
    if isinstance(block, Thinking):
        return encode_reasoning(block)
    template = b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}'
    return template % tuple(map(encode_string, (block.id, block.name, block.arguments_json)))


def _encode_result(result: ToolResult) -> tuple[bytes, bytes, bool]:
    """The data is the last part, because only a part accepts a breakpoint."""
    start = b'{"type":"function_call_output","call_id":%b,"output":' % encode_string(result.tool_use_id)
    if not result.content:
        return ITEM_START, start.removeprefix(ITEM_START) + b'""}', False
    *earlier, last = result.content
    container_start = start + b"[" + b"".join(encode_input_part(part) + b"," for part in earlier)
    return container_start, encode_input_part(last), accepts_responses_breakpoint(last)


def _encode_part(role: Role, part: Text | Image | Opaque) -> tuple[bytes, bool]:
    if role != "assistant" or isinstance(part, Image):
        return encode_input_part(part), accepts_responses_breakpoint(part)
    return encode_output_part(part), False


def is_separate_item(role: Role, kind: str) -> bool:
    """Whether an opaque block is an item of its own and not a part of a message of that role."""
    if role == "assistant":
        return kind not in OUTPUT_KINDS
    return kind in _USER_ITEM_KINDS or kind.endswith("_output")


def decode_responses_item(raw: bytes) -> DecodedItem:
    """Raises msgspec's errors, which never quote a value. An item of an unknown type is carried as its bytes."""
    members = split_object(raw)
    kind = "message" if "type" not in members and "role" in members else get_string_member(members, "type")
    item: DecodedItem | None = None
    match kind:
        case "message":
            item = _decode_message(members)
        case "function_call":
            item = _decode_call(members)
        case "function_call_output":
            item = _decode_result(members)
        case "reasoning":
            thinking = decode_reasoning(members)
            item = DecodedItem("assistant", (thinking,), (None,)) if thinking and thinking.signature else None
        case _:
            pass
    if item is not None:
        return item
    role: Role = "user" if is_separate_item("user", kind) else "assistant"
    if kind == "message":
        role = _decode_role(members)
    return DecodedItem(role, (Opaque(kind, raw),), (None,))


def _decode_role(members: Mapping[str, bytes]) -> Role:
    role = get_string_member(members, "role")
    if role not in _ROLES:
        raise msgspec.ValidationError(f"the role must be one of {', '.join(_ROLES)} - at `$.role`")
    return _ROLES[role]


def _decode_message(members: Mapping[str, bytes]) -> DecodedItem | None:
    role = _decode_role(members)
    fields = _unknown_fields(members, "role", "content")
    content = msgspec.json.decode(members.get("content", b"null"), type=str | tuple[msgspec.Raw, ...])
    if isinstance(content, str):
        return DecodedItem(role, (Text(content),), (None,), fields)
    if role == "assistant":
        blocks: tuple[Block, ...] = tuple(decode_output_part(bytes(part)) for part in content)
        ttls: tuple[Ttl | None, ...] = (None,) * len(blocks)
    else:
        parts = [decode_input_part(bytes(part)) for part in content]
        blocks = tuple(part for part, _ in parts)
        ttls = tuple(ttl for _, ttl in parts)
    if any(isinstance(block, Opaque) and is_separate_item(role, block.kind) for block in blocks):
        # Encoded on its own, such a part would become an item.
        return None
    if fields and not blocks:
        return None
    return DecodedItem(role, blocks, ttls, fields)


def _unknown_fields(members: Mapping[str, bytes], *known: str) -> tuple[tuple[str, str], ...]:
    """Clients put their own metadata on items. `id` and `status` are the API's, and change nothing if left out."""
    names = non_default_names(members, "id", "status", *known)
    return tuple((name, value.decode()) for name, value in members.items() if name in names)


def _decode_call(members: Mapping[str, bytes]) -> DecodedItem | None:
    if not {"call_id", "name", "arguments"} <= members.keys():
        return None
    arguments = decode_call_arguments(get_string_member(members, "arguments"))
    call = ToolUse(get_string_member(members, "call_id"), get_string_member(members, "name"), arguments)
    return DecodedItem("assistant", (call,), (None,), _unknown_fields(members, "call_id", "name", "arguments"))


def decode_call_arguments(text: str) -> str:
    """A model may write an empty text for a call without arguments."""
    return make_valid_arguments(text) if text.strip() else "{}"


def _decode_result(members: Mapping[str, bytes]) -> DecodedItem | None:
    """A breakpoint inside the result is moved to its end, the nearest position an encoded block has."""
    if not {"call_id", "output"} <= members.keys():
        return None
    fields = _unknown_fields(members, "call_id", "output")
    call_id = get_string_member(members, "call_id")
    output = msgspec.json.decode(members["output"], type=str | tuple[msgspec.Raw, ...])
    if isinstance(output, str):
        return DecodedItem("user", (ToolResult(call_id, (Text(output),) if output else ()),), (None,), fields)
    parts = [decode_input_part(bytes(part)) for part in output]
    ttl = next((ttl for _, ttl in reversed(parts) if ttl is not None), None)
    return DecodedItem("user", (ToolResult(call_id, tuple(part for part, _ in parts)),), (ttl,), fields)


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    encrypted_content: str
    id: str | None = None
    lengths: tuple[int, ...] | None = None


class _Summary(msgspec.Struct, frozen=True):
    text: str


_decode_seal = msgspec.json.Decoder(_Seal).decode


def make_signature(encrypted_content: str, id: str | None, summaries: Sequence[str]) -> str:
    """The signature of a thinking block whose text is the joined summaries."""
    is_single = not summaries or (len(summaries) == 1 and summaries[0])
    lengths = None if is_single else tuple(map(len, summaries))
    return canonical_json(_Seal(encrypted_content, id, lengths)).decode()


def has_openai_signature(thinking: Thinking) -> bool:
    return _unseal(thinking) is not None


def encode_reasoning(thinking: Thinking, *, id: str = "") -> bytes:
    """The item. Without a signature of ours it has no encrypted content, and its id is the parameter."""
    unsealed = _unseal(thinking)
    summaries = _encode_summaries(split_summaries(thinking))
    if unsealed is None:
        return b'{"type":"reasoning","id":%b,"summary":[%b]}' % (encode_string(id), summaries)
    sealed, _ = unsealed
    id_member = b"" if sealed.id is None else b'"id":' + encode_string(sealed.id) + b","
    encrypted_content = encode_string(sealed.encrypted_content)
    return b'{"type":"reasoning",%b"summary":[%b],"encrypted_content":%b}' % (id_member, summaries, encrypted_content)


def signed_item_id(thinking: Thinking) -> str | None:
    unsealed = _unseal(thinking)
    return None if unsealed is None else unsealed[0].id


def split_summaries(thinking: Thinking) -> tuple[str, ...]:
    unsealed = _unseal(thinking)
    if unsealed is not None:
        return unsealed[1]
    return (thinking.text,) if thinking.text else ()


def decode_reasoning(members: Mapping[str, bytes]) -> Thinking | None:
    """None if the item has fields that thinking cannot hold; unsigned if it has no encrypted content."""
    if not non_default_names(members, "status") <= {"id", "summary", "encrypted_content"}:
        return None
    summaries = _decode_summaries(members.get("summary", b"[]"))
    if summaries is None:
        return None
    text = SUMMARY_SEPARATOR.join(summaries)
    encrypted_content = get_optional_string(members, "encrypted_content")
    if not encrypted_content:
        return Thinking(text)
    id = get_string_member(members, "id") if "id" in members else None
    return Thinking(text, make_signature(encrypted_content, id, summaries))


def _encode_summaries(summaries: Sequence[str]) -> bytes:
    return b",".join(b'{"type":"summary_text","text":' + encode_string(text) + b"}" for text in summaries)


def _decode_summaries(raw: bytes) -> list[str] | None:
    parts = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])
    if any(part.keys() != {"type", "text"} or bytes(part["type"]) != b'"summary_text"' for part in parts):
        return None
    return [text.text for text in msgspec.json.decode(raw, type=list[_Summary])]


def _unseal(thinking: Thinking) -> tuple[_Seal, tuple[str, ...]] | None:
    """None if the signature is not ours, or does not belong to this text."""
    sealed = decode_or_none(_decode_seal, thinking.signature)
    if sealed is None:
        return None
    summaries: tuple[str, ...] = (thinking.text,) if thinking.text else ()
    if sealed.lengths is not None:
        # Each summary is followed by the separator, so summary k starts at sum(length_i + len(SEPARATOR), i < k).
        ends = accumulate((length + len(SUMMARY_SEPARATOR) for length in sealed.lengths), initial=0)
        summaries = tuple(thinking.text[start : end - len(SUMMARY_SEPARATOR)] for start, end in pairwise(ends))
    if SUMMARY_SEPARATOR.join(summaries) != thinking.text:
        return None
    is_ours = make_signature(sealed.encrypted_content, sealed.id, summaries) == thinking.signature
    return (sealed, summaries) if is_ours else None
