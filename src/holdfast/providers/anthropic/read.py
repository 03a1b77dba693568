"""Decodes a request to Anthropic: its prompt, breakpoints and parameters."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.canonical.blocks import Block, Role, Text
from holdfast.canonical.prompt import Parameters, Passage
from holdfast.canonical.tools import ToolSpec
from holdfast.providers.adapter import WireRequest
from holdfast.providers.anthropic.blocks import MARK, read_block, read_mark
from holdfast.providers.anthropic.spell import BETA_HEADER, PARAMETER_NAMES, PROMPT_NAMES
from holdfast.providers.failures import header, readable
from holdfast.providers.members import read_string, take_apart, without
from holdfast.providers.reading import Lifetimes, prompt_of, refuse_oversized, request_of

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

_readable = partial(readable, "invalid_request", status=400)


class _Body(msgspec.Struct, frozen=True):
    model: str
    messages: tuple[msgspec.Raw, ...]
    max_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] | None = None
    tools: tuple[msgspec.Raw, ...] | None = None
    system: str | tuple[msgspec.Raw, ...] | None = None


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str | tuple[msgspec.Raw, ...]


_decode_message = msgspec.json.Decoder(_Message).decode


def read_request(body: bytes, headers: Mapping[str, str], *, output_tokens_default: int | None = None) -> WireRequest:
    """A request may omit `max_tokens` only if `output_tokens_default` is set, as for counting tokens."""
    refuse_oversized(body)
    with _readable("the request"):
        body.decode()
        top = take_apart(body)
        typed = msgspec.json.decode(body, type=_Body)
        parameters = _decode_parameters(typed, top, output_tokens_default)
    tools, tool_ttls = _decode_tools(typed.tools or ())
    system, system_ttls = _decode_system(typed.system or ())
    entries, message_ttls = _decode_messages(typed.messages)
    return request_of(
        prompt_of(tools, system, entries),
        [*tool_ttls, *system_ttls, *message_ttls],
        msgspec.structs.replace(parameters, betas=_decode_betas(headers)),
    )


def _decode_parameters(typed: _Body, top: Mapping[str, bytes], output_tokens_default: int | None) -> Parameters:
    output_tokens_max = output_tokens_default if typed.max_tokens is None else typed.max_tokens
    if output_tokens_max is None:
        raise msgspec.ValidationError("Object missing required field `max_tokens`")
    if output_tokens_max < 0:
        raise msgspec.ValidationError("Expected `int` >= 0 - at `$.max_tokens`")
    known = PARAMETER_NAMES | PROMPT_NAMES
    return Parameters(
        model=typed.model,
        output_tokens_max=output_tokens_max,
        stream=bool(typed.stream),
        stop_sequences=typed.stop_sequences or (),
        temperature=typed.temperature,
        tool_choice_json=top["tool_choice"].decode() if "tool_choice" in top else None,
        thinking_json=top["thinking"].decode() if "thinking" in top else None,
        extra=tuple((name, value.decode()) for name, value in top.items() if name not in known),
    )


def _decode_betas(headers: Mapping[str, str]) -> tuple[str, ...]:
    names = (header(headers, BETA_HEADER) or "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def _decode_tools(raws: Sequence[msgspec.Raw]) -> tuple[tuple[ToolSpec, ...], Lifetimes]:
    tools: list[ToolSpec] = []
    ttls: Lifetimes = []
    for index, raw in enumerate(raws):
        with _readable(f"tools.{index}"):
            members = take_apart(bytes(raw))
            ttls.append(read_mark(members))
            tools.append(_decode_tool(bytes(raw), members))
    return tuple(tools), ttls


def _decode_tool(raw: bytes, members: dict[str, bytes]) -> ToolSpec:
    """A tool with further fields is carried as its bytes."""
    schema = members.get("input_schema", b"{}").decode()
    if members.keys() - {MARK} == {"name", "description", "input_schema"}:
        return ToolSpec(read_string(members, "name"), read_string(members, "description"), schema)
    # A tool that the provider defines may have only a type.
    name = read_string(members, "name" if "name" in members else "type")
    raw_description = members.get("description", b'""')
    description = msgspec.json.decode(raw_description, type=str | None) or ""
    return ToolSpec(name, description, schema, wire_json=without(raw, MARK).decode())


def _decode_system(system: str | Sequence[msgspec.Raw]) -> tuple[tuple[Text, ...], Lifetimes]:
    if isinstance(system, str):
        return (Text(system),), [None]
    texts: list[Text] = []
    ttls: Lifetimes = []
    for index, raw in enumerate(system):
        with _readable(f"system.{index}"):
            block, ttl = read_block(bytes(raw))
            if not isinstance(block, Text):
                raise msgspec.ValidationError("only text without further fields is allowed here")
            texts.append(block)
            ttls.append(ttl)
    return tuple(texts), ttls


def _decode_messages(raws: Sequence[msgspec.Raw]) -> tuple[tuple[Passage, ...], Lifetimes]:
    entries: list[Passage] = []
    ttls: Lifetimes = []
    for index, raw in enumerate(raws):
        with _readable(f"messages.{index}"):
            message = _decode_message(raw)
            if message.role not in _ROLES:
                raise msgspec.ValidationError(f"the role must be one of {', '.join(_ROLES)} - at `$.role`")
        content, content_ttls = _decode_content(message.content, f"messages.{index}")
        entries.append(Passage(_ROLES[message.role], content))
        ttls += content_ttls
    return tuple(entries), ttls


def _decode_content(content: str | Sequence[msgspec.Raw], path: str) -> tuple[tuple[Block, ...], Lifetimes]:
    if isinstance(content, str):
        return (Text(content),), [None]
    blocks: list[Block] = []
    ttls: Lifetimes = []
    for index, raw in enumerate(content):
        with _readable(f"{path}.content.{index}"):
            block, ttl = read_block(bytes(raw))
            blocks.append(block)
            ttls.append(ttl)
    return tuple(blocks), ttls
