"""How the providers of Chat Completions differ, and the parameters of a request, encoded and decoded."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind, UserError
from holdfast.providers.json_splice import decode_or_none, encode_json_text, encode_string, join_object, split_object
from holdfast.providers.openai_common import decode_openai_tool_choice, encode_openai_tool_choice
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters, Ttl

RequestFields = tuple[tuple[str, str], ...]


class ErrorEncoder(Protocol):
    def __call__(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]: ...


class ChatVariant(msgspec.Struct, frozen=True):
    """`breakpoints` are the values of the member `breakpoint_name`, by TTL."""

    name: str
    vendor: str
    output_limit_name: str
    thinking_name: str
    breakpoint_name: str
    breakpoints: Mapping[Ttl, bytes]
    parts_with_breakpoints: frozenset[str]
    carries_reasoning: bool
    session_fields: Callable[[Model, str], RequestFields]
    encode_error: ErrorEncoder
    # Whether a model's cache writes have the TTL 5m; all others count as `cache_write_other`.
    writes_with_ttl_5m: Callable[[str], bool]


_LIMIT_NAMES = ("max_completion_tokens", "max_tokens")
_FIXED_NAMES = frozenset({"model", *_LIMIT_NAMES, "stream", "temperature", "stop", "tools", "messages"})
# A stream has usage only if it is requested, in a last chunk without choices (OpenAI, API reference).
_INCLUDE_USAGE = b'{"include_usage":true}'


class _Effort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str


_decode_effort = msgspec.json.Decoder(_Effort).decode


class _Body(msgspec.Struct, frozen=True):
    model: str
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    stop: str | tuple[str, ...] | None = None
    parallel_tool_calls: bool | None = None


def chat_request_head(parameters: Parameters, variant: ChatVariant) -> bytes:
    reject_betas(parameters, variant)
    members = {"model": encode_string(parameters.model)}
    if parameters.output_tokens_max:
        members[variant.output_limit_name] = b"%d" % parameters.output_tokens_max
    if parameters.stream:
        members["stream"] = b"true"
        if "stream_options" not in dict(parameters.extra):
            members["stream_options"] = _INCLUDE_USAGE
    if parameters.temperature is not None:
        members["temperature"] = encode_json(parameters.temperature)
    if parameters.stop_sequences:
        members["stop"] = b"[" + b",".join(map(encode_string, parameters.stop_sequences)) + b"]"
    if parameters.thinking_json is not None:
        members[variant.thinking_name] = _encode_thinking(parameters.thinking_json, variant)
    if parameters.tool_choice_json is not None:
        members |= encode_openai_tool_choice(parameters.tool_choice_json, nested=True)
    for name, value in parameters.extra:
        if name in members or name in _FIXED_NAMES or name == variant.thinking_name:
            raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
        members[name] = encode_json_text(value)
    return join_object(members).removesuffix(b"}")


def reject_betas(parameters: Parameters, variant: ChatVariant) -> None:
    if parameters.betas:
        raise UserError(f"beta {parameters.betas[0]!r} is Anthropic's; {variant.vendor} takes none, so leave it out")


def _encode_thinking(thinking_json: str, variant: ChatVariant) -> bytes:
    if variant.thinking_name != "reasoning_effort":
        return encode_json_text(thinking_json)
    thinking = decode_or_none(_decode_effort, encode_json_text(thinking_json))
    if thinking is None:
        raise UserError(f'{variant.vendor} takes thinking as {{"effort": "high"}} and nothing else')
    return encode_string(thinking.effort)


def decode_chat_parameters(body: bytes, top: Mapping[str, bytes], variant: ChatVariant) -> Parameters:
    """Raises msgspec's errors. Fields without a canonical form go to `extra`; nulls are dropped."""
    typed = msgspec.json.decode(body, type=_Body)
    limits = {"max_completion_tokens": typed.max_completion_tokens, "max_tokens": typed.max_tokens}
    candidates = [limits.pop(variant.output_limit_name), *limits.values()]
    output_tokens_max = next((limit for limit in candidates if limit is not None), None)
    if output_tokens_max is not None and output_tokens_max < 1:
        raise msgspec.ValidationError("Expected `int` >= 1 - at `$.max_tokens`")
    choice, _ = decode_openai_tool_choice(top, nested=True)
    return Parameters(
        model=typed.model,
        output_tokens_max=output_tokens_max or 0,
        stream=bool(typed.stream),
        stop_sequences=(typed.stop,) if isinstance(typed.stop, str) else typed.stop or (),
        temperature=typed.temperature,
        tool_choice_json=choice,
        thinking_json=_decode_thinking(top.get(variant.thinking_name, b"null"), variant),
        extra=tuple(_extra_fields(top, typed, variant, has_choice=choice is not None)),
    )


def _extra_fields(
    top: Mapping[str, bytes], typed: _Body, variant: ChatVariant, *, has_choice: bool
) -> Iterator[tuple[str, str]]:
    decoded = _FIXED_NAMES | {variant.thinking_name}
    if has_choice:
        decoded |= {"tool_choice"} if typed.parallel_tool_calls else {"tool_choice", "parallel_tool_calls"}
    for name, value in top.items():
        implied = typed.stream and name == "stream_options" and _members(value) == _members(_INCLUDE_USAGE)
        null_choice = name == "tool_choice" and value == b"null"
        if name not in decoded and not implied and not null_choice:
            yield name, value.decode()


def _members(raw: bytes) -> dict[str, bytes]:
    return split_object(raw) if raw != b"null" else {}


def _decode_thinking(raw: bytes, variant: ChatVariant) -> str | None:
    if raw == b"null":
        return None
    if variant.thinking_name != "reasoning_effort":
        return raw.decode()
    return encode_json({"effort": msgspec.json.decode(raw, type=str)}).decode()
