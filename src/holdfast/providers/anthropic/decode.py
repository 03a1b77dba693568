"""Decodes a request to Anthropic: its prompt, breakpoints and parameters."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.providers.adapter import NO_HEADERS, WireRequest
from holdfast.providers.anthropic.blocks import CACHE_CONTROL, decode_anthropic_block, decode_cache_control
from holdfast.providers.anthropic.encode import BETA_HEADER, PARAMETER_NAMES, PROMPT_NAMES
from holdfast.providers.errors import get_header
from holdfast.providers.json_splice import get_optional_string, get_string_member, remove_member, split_object
from holdfast.providers.wire_request import (
    build_prompt,
    build_wire_request,
    decode_each,
    decoding_request,
    reject_oversized,
)
from holdfast.types.blocks import Block, Role, Text
from holdfast.types.prompt import HistoryEntry, Parameters, Ttl
from holdfast.types.tool_spec import ToolSpec

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


class _Body(msgspec.Struct, frozen=True):
    model: str
    messages: tuple[msgspec.Raw, ...]
    max_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] | None = None
    tools: tuple[msgspec.Raw, ...] | None = None
    system: str | tuple[msgspec.Raw, ...] | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | tuple[msgspec.Raw, ...]
    fields: tuple[tuple[str, str], ...] = msgspec.field(name=":fields", default=())


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_wire_message = msgspec.json.Decoder(_Message).decode


def decode_anthropic_request(
    body: bytes, headers: Mapping[str, str] = NO_HEADERS, *, output_tokens_default: int | None = None
) -> WireRequest:
    """A request may omit `max_tokens` only if `output_tokens_default` is set, as for counting tokens."""
    reject_oversized(body)
    with decoding_request():
        body.decode()
        top = split_object(body)
        typed = _decode_body(body)
        parameters = _decode_parameters(typed, top, output_tokens_default)
    tools = list(decode_each(typed.tools or (), "tools", _decode_tool))
    system = _decode_content(typed.system or (), "system", _decode_system_text)
    ttls = [ttl for _, ttl in (*tools, *system)]
    entries: list[HistoryEntry] = []
    for index, message in enumerate(decode_each(typed.messages, "messages", _decode_message)):
        content = _decode_content(message.content, f"messages.{index}.content", decode_anthropic_block)
        blocks = tuple(block for block, _ in content)
        entries.append(HistoryEntry(_ROLES[message.role], blocks, fields=message.fields))
        ttls += [ttl for _, ttl in content]
    texts = tuple(block for block, _ in system if isinstance(block, Text))
    prompt = build_prompt(tuple(tool for tool, _ in tools), texts, tuple(entries))
    return build_wire_request(prompt, ttls, msgspec.structs.replace(parameters, betas=_decode_betas(headers)))


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


def _decode_tool(raw: bytes) -> tuple[ToolSpec, Ttl | None]:
    """The tool and the TTL of its breakpoint; a tool with further fields is carried as its bytes."""
    members = split_object(raw)
    ttl = decode_cache_control(members)
    schema = members.get("input_schema", b"{}").decode()
    if members.keys() - {CACHE_CONTROL} == {"name", "description", "input_schema"}:
        return ToolSpec(get_string_member(members, "name"), get_string_member(members, "description"), schema), ttl
    # A tool that the provider defines may have only a type.
    name = get_string_member(members, "name" if "name" in members else "type")
    description = get_optional_string(members, "description")
    return ToolSpec(name, description, schema, wire_json=remove_member(raw, CACHE_CONTROL).decode()), ttl


def _decode_system_text(raw: bytes) -> tuple[Block, Ttl | None]:
    block, ttl = decode_anthropic_block(raw)
    if not isinstance(block, Text):
        raise msgspec.ValidationError("only text without further fields is allowed here")
    return block, ttl


def _decode_message(raw: bytes) -> _Message:
    """A field that is neither role nor content is carried: betas put controls of a turn on its message."""
    message, members = _decode_wire_message(raw), split_object(raw)
    if message.role not in _ROLES:
        raise msgspec.ValidationError(f"the role must be one of {', '.join(_ROLES)} - at `$.role`")
    fields = tuple((name, value.decode()) for name, value in members.items() if name not in ("role", "content"))
    return msgspec.structs.replace(message, fields=fields) if fields else message


def _decode_content(
    content: str | Sequence[msgspec.Raw], path: str, decode: Callable[[bytes], tuple[Block, Ttl | None]]
) -> list[tuple[Block, Ttl | None]]:
    """The blocks, each with the TTL of its breakpoint."""
    return [(Text(content), None)] if isinstance(content, str) else list(decode_each(content, path, decode))
