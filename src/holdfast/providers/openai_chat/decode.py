"""Decodes a Chat Completions request: its prompt, breakpoints and parameters."""

from collections.abc import Iterator

import msgspec

from holdfast.providers import wire_request
from holdfast.providers.adapter import WireRequest
from holdfast.providers.json_splice import get_optional_string, get_string_member, make_valid_arguments, split_object
from holdfast.providers.openai_chat.parameters import ChatVariant, decode_chat_parameters
from holdfast.providers.openai_chat.parts import (
    CALL_KIND,
    MESSAGE_KIND,
    REASONING_DETAILS,
    ChatPart,
    decode_chat_part,
    decode_request_detail,
)
from holdfast.providers.openai_common import ERROR_TEXT
from holdfast.types.blocks import Block, Opaque, Role, Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, Ttl
from holdfast.types.tool_spec import ToolSpec

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

DEFAULT_MEMBERS = (("annotations", b"[]"), ("tool_calls", b"[]"))
"""Members that can be dropped with this value."""

_DecodedBlock = tuple[Block, Ttl | None]


class _Prompt(msgspec.Struct, frozen=True):
    messages: tuple[msgspec.Raw, ...]
    tools: tuple[msgspec.Raw, ...] | None = None


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    function: _Function
    type: str = "function"


_decode_content = msgspec.json.Decoder(str | tuple[msgspec.Raw, ...] | None).decode
_decode_list = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_decode_call = msgspec.json.Decoder(_Call).decode


def decode_chat_request(body: bytes, variant: ChatVariant) -> WireRequest:
    wire_request.reject_oversized(body)
    with wire_request.decoding_request():
        body.decode()
        typed = msgspec.json.decode(body, type=_Prompt)
        parameters = decode_chat_parameters(body, split_object(body), variant)
    tools = tuple(wire_request.decode_each(typed.tools or (), "tools", _decode_tool))
    system: tuple[Text, ...] = ()
    ttls: list[Ttl | None] = [None] * len(tools)
    entries: list[HistoryEntry] = []
    messages = wire_request.decode_each(typed.messages, "messages", lambda raw: _decode_message(raw, variant))
    for index, (role, blocks) in enumerate(messages):
        texts = tuple(block for block, _ in blocks if isinstance(block, Text))
        if index == 0 and role == "system" and len(texts) == len(blocks):
            system = texts
        elif blocks:
            entries.append(HistoryEntry(role, tuple(block for block, _ in blocks)))
        ttls += [ttl for _, ttl in blocks]
    return wire_request.build_wire_request(wire_request.build_prompt(tools, system, tuple(entries)), ttls, parameters)


def _decode_tool(raw: bytes) -> ToolSpec:
    """A tool that is not a plain function with name, description and parameters is carried as its bytes."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    # Name and description are in a member named like the tool's type, or on the top level.
    definition = split_object(members[kind]) if members.get(kind, b"").startswith(b"{") else members
    schema = definition.get("parameters", b"{}").decode()
    if members.keys() == {"type", "function"} and definition.keys() == {"name", "description", "parameters"}:
        return ToolSpec(get_string_member(definition, "name"), get_string_member(definition, "description"), schema)
    name = get_string_member(definition, "name" if "name" in definition else "type")
    return ToolSpec(name, get_optional_string(definition, "description"), schema, wire_json=raw.decode())


def _decode_message(raw: bytes, variant: ChatVariant) -> tuple[Role, list[_DecodedBlock]]:
    members = split_object(raw)
    present = {
        name: value for name, value in members.items() if value != b"null" and (name, value) not in DEFAULT_MEMBERS
    }
    role = get_string_member(present, "role")
    del present["role"]
    if role == "tool":
        return "user", [_decode_result(present, variant)]
    if role not in _ROLES:
        raise msgspec.ValidationError(f"the role must be tool or one of {', '.join(_ROLES)} - at `$.role`")
    return _ROLES[role], list(_decode_blocks(_ROLES[role], present, variant))


def _decode_blocks(role: Role, members: dict[str, bytes], variant: ChatVariant) -> Iterator[_DecodedBlock]:
    """The blocks in the order in which they are encoded: other members, reasoning, content, calls."""
    content = _content_parts(members.pop("content", b"null"), variant, accepts_empty=role == "user")
    if role == "assistant":
        calls = _decode_list(members.pop("tool_calls", b"[]"))
        details = _decode_list(members.pop(REASONING_DETAILS, b"[]")) if variant.carries_reasoning else ()
    else:
        calls = details = ()
    for name, value in members.items():
        yield Opaque(MESSAGE_KIND + name, value), None
    for detail in details:
        yield decode_request_detail(bytes(detail)), None
    yield from content
    for call in calls:
        yield _decode_tool_call(bytes(call)), None


def _content_parts(
    raw: bytes, variant: ChatVariant, *, accepts_empty: bool = True
) -> list[tuple[ChatPart, Ttl | None]]:
    """Many clients send an empty text with a message that has only calls, or as the system prompt if there is none."""
    content = _decode_content(raw)
    if content is None or (content == "" and not accepts_empty):
        return []
    if isinstance(content, str):
        return [(Text(content), None)]
    return [decode_chat_part(bytes(part), variant) for part in content]


def _decode_tool_call(raw: bytes) -> ToolUse | Opaque:
    try:
        call = _decode_call(raw)
    except msgspec.ValidationError:
        return Opaque(CALL_KIND + get_string_member(split_object(raw), "type"), raw)
    if call.type != "function":
        return Opaque(CALL_KIND + call.type, raw)
    return ToolUse(call.id, call.function.name, make_valid_arguments(call.function.arguments or "{}"))


def _decode_result(members: dict[str, bytes], variant: ChatVariant) -> _DecodedBlock:
    """A breakpoint inside the result is moved to its end. A `name` only repeats the call's."""
    if unknown := members.keys() - {"tool_call_id", "content", "name"}:
        raise msgspec.ValidationError(f"Object contains unknown field `{min(unknown)}`")
    parts = _content_parts(members.get("content", b'""'), variant)
    content = tuple(part for part, _ in parts)
    ttl = next((ttl for _, ttl in reversed(parts) if ttl is not None), None)
    return ToolResult(get_string_member(members, "tool_call_id"), content, content[:1] == (ERROR_TEXT,)), ttl
