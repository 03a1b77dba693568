"""Decodes a request to Anthropic: its prompt, breakpoints and parameters."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.providers.adapter import NO_HEADERS, WireRequest
from holdfast.providers.anthropic.blocks import CACHE_CONTROL, decode_anthropic_block, decode_cache_control
from holdfast.providers.anthropic.encode import BETA_HEADER, PARAMETER_NAMES, PROMPT_NAMES
from holdfast.providers.errors import decoding_errors, get_header
from holdfast.providers.json_splice import get_string_member, remove_member, split_object
from holdfast.providers.wire_request import BlockTtls, build_prompt, build_wire_request, reject_oversized
from holdfast.types.blocks import Block, Role, Text
from holdfast.types.prompt import HistoryEntry, Parameters
from holdfast.types.tool_spec import ToolSpec

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

_readable = partial(decoding_errors, "invalid_request", status=400)


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


def decode_anthropic_request(
    body: bytes, headers: Mapping[str, str] = NO_HEADERS, *, output_tokens_default: int | None = None
) -> WireRequest:
    """A request may omit `max_tokens` only if `output_tokens_default` is set, as for counting tokens."""
    reject_oversized(body)
    with _readable("the request"):
        body.decode()
        top = split_object(body)
        typed = msgspec.json.decode(body, type=_Body)
        parameters = _decode_parameters(typed, top, output_tokens_default)
    tools, tool_ttls = _decode_tools(typed.tools or ())
    system, system_ttls = _decode_system(typed.system or ())
    entries, message_ttls = _decode_messages(typed.messages)
    return build_wire_request(
        build_prompt(tools, system, entries),
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
    names = (get_header(headers, BETA_HEADER) or "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def _decode_tools(raws: Sequence[msgspec.Raw]) -> tuple[tuple[ToolSpec, ...], BlockTtls]:
    tools: list[ToolSpec] = []
    ttls: BlockTtls = []
    for index, raw in enumerate(raws):
        with _readable(f"tools.{index}"):
            members = split_object(bytes(raw))
            ttls.append(decode_cache_control(members))
            tools.append(_decode_tool(bytes(raw), members))
    return tuple(tools), ttls


def _decode_tool(raw: bytes, members: dict[str, bytes]) -> ToolSpec:
    """A tool with further fields is carried as its bytes."""
    schema = members.get("input_schema", b"{}").decode()
    if members.keys() - {CACHE_CONTROL} == {"name", "description", "input_schema"}:
        return ToolSpec(get_string_member(members, "name"), get_string_member(members, "description"), schema)
    # A tool that the provider defines may have only a type.
    name = get_string_member(members, "name" if "name" in members else "type")
    raw_description = members.get("description", b'""')
    description = msgspec.json.decode(raw_description, type=str | None) or ""
    return ToolSpec(name, description, schema, wire_json=remove_member(raw, CACHE_CONTROL).decode())


def _decode_system(system: str | Sequence[msgspec.Raw]) -> tuple[tuple[Text, ...], BlockTtls]:
    if isinstance(system, str):
        return (Text(system),), [None]
    texts: list[Text] = []
    ttls: BlockTtls = []
    for index, raw in enumerate(system):
        with _readable(f"system.{index}"):
            block, ttl = decode_anthropic_block(bytes(raw))
            if not isinstance(block, Text):
                raise msgspec.ValidationError("only text without further fields is allowed here")
            texts.append(block)
            ttls.append(ttl)
    return tuple(texts), ttls


def _decode_messages(raws: Sequence[msgspec.Raw]) -> tuple[tuple[HistoryEntry, ...], BlockTtls]:
    entries: list[HistoryEntry] = []
    ttls: BlockTtls = []
    for index, raw in enumerate(raws):
        with _readable(f"messages.{index}"):
            message = _decode_message(raw)
            if message.role not in _ROLES:
                raise msgspec.ValidationError(f"the role must be one of {', '.join(_ROLES)} - at `$.role`")
        content, content_ttls = _decode_content(message.content, f"messages.{index}")
        entries.append(HistoryEntry(_ROLES[message.role], content))
        ttls += content_ttls
    return tuple(entries), ttls


def _decode_content(content: str | Sequence[msgspec.Raw], path: str) -> tuple[tuple[Block, ...], BlockTtls]:
    if isinstance(content, str):
        return (Text(content),), [None]
    blocks: list[Block] = []
    ttls: BlockTtls = []
    for index, raw in enumerate(content):
        with _readable(f"{path}.content.{index}"):
            block, ttl = decode_anthropic_block(bytes(raw))
            blocks.append(block)
            ttls.append(ttl)
    return tuple(blocks), ttls
