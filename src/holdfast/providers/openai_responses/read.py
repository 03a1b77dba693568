"""Decodes a request to the Responses API: its prompt, breakpoints and parameters."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Parameters, Passage
from holdfast.canonical.tools import ToolSpec
from holdfast.providers.adapter import WireRequest
from holdfast.providers.failures import readable
from holdfast.providers.members import read_string, take_apart
from holdfast.providers.openai_choice import read_choice
from holdfast.providers.openai_responses.items import ReadItem, read_item
from holdfast.providers.openai_responses.spell import DEFAULTS, PARAMETER_NAMES, PROMPT_NAMES
from holdfast.providers.reading import prompt_of, refuse_oversized, request_of

# The API's defaults for fields that a request leaves out.
_API_DEFAULTS = {"store": b"true", "include": b"[]"}

_readable = partial(readable, "invalid_request", status=400)


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


def read_request(body: bytes) -> WireRequest:
    refuse_oversized(body)
    with _readable("the request"):
        body.decode()
        top = take_apart(body)
        typed = msgspec.json.decode(body, type=_Body)
        parameters = _decode_parameters(typed, top)
    tools = _decode_tools(typed.tools or ())
    raw_input = typed.input or ()
    items = [ReadItem("user", (Text(raw_input),), (None,))] if isinstance(raw_input, str) else _decode_items(raw_input)
    # One per block; tools and top-level instructions cannot have a breakpoint.
    ttls = [None] * (len(tools) + bool(typed.instructions)) + [ttl for item in items for ttl in item.lifetimes]
    system: tuple[Text, ...] = (Text(typed.instructions),) if typed.instructions else ()
    if not isinstance(raw_input, str) and items and _is_system_prompt(raw_input[0], items[0]):
        system += tuple(block for block in items.pop(0).blocks if isinstance(block, Text))
    entries = tuple(Passage(item.role, item.blocks) for item in items if item.blocks)
    return request_of(prompt_of(tools, system, entries), ttls, parameters)


def _is_system_prompt(raw: msgspec.Raw, first: ReadItem) -> bool:
    """Whether the first item is a developer message or, in the short form without `type`, a system message."""
    if first.role != "system" or not all(isinstance(block, Text) for block in first.blocks):
        return False
    head = msgspec.json.decode(raw, type=_Head)
    return head.role == "developer" or head.type is None


def _decode_parameters(typed: _Body, top: Mapping[str, bytes]) -> Parameters:
    if typed.max_output_tokens is not None and typed.max_output_tokens < 1:
        raise msgspec.ValidationError("Expected `int` >= 1 - at `$.max_output_tokens`")
    tool_choice_json, choice_names = read_choice(top, nested=False)
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
        extra=tuple((name, value.decode()) for name, value in extra.items() if DEFAULTS.get(name) != value),
    )


def _decode_tools(raws: Sequence[msgspec.Raw]) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for index, raw in enumerate(raws):
        with _readable(f"tools.{index}"):
            tools.append(_decode_tool(bytes(raw)))
    return tuple(tools)


def _decode_tool(raw: bytes) -> ToolSpec:
    """A tool with further fields is carried as its bytes."""
    members = take_apart(raw)
    kind = read_string(members, "type")
    schema = members.get("parameters", b"{}").decode()
    is_plain = (
        members.keys() == {"type", "name", "description", "parameters", "strict"} and members["strict"] == b"false"
    )
    if kind == "function" and is_plain:
        return ToolSpec(read_string(members, "name"), read_string(members, "description"), schema)
    # A tool that the provider defines may have only a type.
    name = read_string(members, "name") if "name" in members else kind
    description = msgspec.json.decode(members.get("description", b"null"), type=str | None) or ""
    return ToolSpec(name, description, schema, wire_json=raw.decode())


def _decode_items(raws: Sequence[msgspec.Raw]) -> list[ReadItem]:
    items: list[ReadItem] = []
    for index, raw in enumerate(raws):
        with _readable(f"input.{index}"):
            items.append(read_item(bytes(raw)))
    return items
