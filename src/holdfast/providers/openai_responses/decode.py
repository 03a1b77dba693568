"""Decodes a request to the Responses API: its prompt, breakpoints and parameters."""

from collections.abc import Mapping

import msgspec

from holdfast.providers import wire_request
from holdfast.providers.adapter import WireRequest
from holdfast.providers.json_splice import get_optional_string, get_string_member, split_object
from holdfast.providers.openai_common import decode_openai_tool_choice
from holdfast.providers.openai_responses.encode import PARAMETER_NAMES, PROMPT_NAMES, REQUEST_DEFAULTS
from holdfast.providers.openai_responses.items import DecodedItem, decode_responses_item
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Parameters
from holdfast.types.tool_spec import ToolSpec

# The API's defaults for fields that a request leaves out.
_API_DEFAULTS = {"store": b"true", "include": b"[]"}


class _Body(msgspec.Struct, frozen=True):
    model: str
    input: str | tuple[msgspec.Raw, ...] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    tools: tuple[msgspec.Raw, ...] | None = None


class _Head(msgspec.Struct, frozen=True):
    type: str | None = None
    role: str | None = None


def decode_responses_request(body: bytes) -> WireRequest:
    wire_request.reject_oversized(body)
    with wire_request.decoding_request():
        body.decode()
        top = split_object(body)
        typed = msgspec.json.decode(body, type=_Body)
        parameters = _decode_parameters(typed, top)
    tools = tuple(wire_request.decode_each(typed.tools or (), "tools", _decode_tool))
    raw_input = typed.input or ()
    if isinstance(raw_input, str):
        items = [DecodedItem("user", (Text(raw_input),), (None,))]
    else:
        items = list(wire_request.decode_each(raw_input, "input", decode_responses_item))
    # One per block; tools and top-level instructions cannot have a breakpoint.
    ttls = [None] * (len(tools) + bool(typed.instructions)) + [ttl for item in items for ttl in item.ttls]
    system: tuple[Text, ...] = (Text(typed.instructions),) if typed.instructions else ()
    if not isinstance(raw_input, str) and items and _is_system_prompt(raw_input[0], items[0]):
        system += tuple(block for block in items.pop(0).blocks if isinstance(block, Text))
    entries = tuple(HistoryEntry(item.role, item.blocks, fields=item.fields) for item in items if item.blocks)
    return wire_request.build_wire_request(wire_request.build_prompt(tools, system, entries), ttls, parameters)


def _is_system_prompt(raw: msgspec.Raw, first: DecodedItem) -> bool:
    """Whether the first item is a developer message or, in the short form without `type`, a system message."""
    if first.role != "system" or first.fields or not all(isinstance(block, Text) for block in first.blocks):
        return False
    head = msgspec.json.decode(raw, type=_Head)
    return head.role == "developer" or head.type is None


def _decode_parameters(typed: _Body, top: Mapping[str, bytes]) -> Parameters:
    if typed.max_output_tokens is not None and typed.max_output_tokens < 1:
        raise msgspec.ValidationError("Expected `int` >= 1 - at `$.max_output_tokens`")
    tool_choice_json, choice_names = decode_openai_tool_choice(top, nested=False)
    known = PARAMETER_NAMES | PROMPT_NAMES | choice_names
    others = {name: value for name, value in top.items() if name not in known}
    extra = others | {name: value for name, value in _API_DEFAULTS.items() if name not in others}
    return Parameters(
        model=typed.model,
        output_tokens_max=typed.max_output_tokens or 0,
        stream=bool(typed.stream),
        temperature=typed.temperature,
        tool_choice_json=tool_choice_json,
        thinking_json=top["reasoning"].decode() if "reasoning" in top else None,
        extra=tuple((name, value.decode()) for name, value in extra.items() if REQUEST_DEFAULTS.get(name) != value),
    )


def _decode_tool(raw: bytes) -> ToolSpec:
    """A tool with further fields is carried as its bytes."""
    members = split_object(raw)
    kind = get_string_member(members, "type")
    schema = members.get("parameters", b"{}").decode()
    is_plain = members.keys() == {"type", "name", "description", "parameters", "strict"}
    if kind == "function" and is_plain and members["strict"] == b"false":
        return ToolSpec(get_string_member(members, "name"), get_string_member(members, "description"), schema)
    # A tool that the provider defines may have only a type.
    name = get_string_member(members, "name") if "name" in members else kind
    return ToolSpec(name, get_optional_string(members, "description"), schema, wire_json=raw.decode())
