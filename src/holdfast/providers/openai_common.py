"""What OpenAI's two APIs share: session fields, images, tool choice, usage counters and errors.

OpenRouter's API has the formats of Chat Completions, with other error bodies.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.errors import STATUS_BY_FAILURE, make_refusal
from holdfast.providers.json_splice import decode_or_none, encode_json_text, encode_string
from holdfast.types.blocks import Base64Source, FileSource, Image, Json, Text, UrlSource, replace_surrogates
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.usage import Usage, clamp_token_count

ERROR_TEXT = Text("Error:")
"""The first text in the result of a failed tool call: neither API has an error flag."""
IMAGE_TEXT = Text("[image]")
"""Stands where an API accepts no image."""

CACHE_KEY_CHARS_MAX = 64
EXTENDED_RETENTION = "24h"
_DATA_URL = re.compile(r"data:(.*?);base64,(.*)", re.DOTALL)
TOOL_CHOICE_FIELD = "tool_choice"
PARALLEL_FIELD = "parallel_tool_calls"

# Our values are Anthropic's; OpenAI calls `any` `required`.
_OPENAI_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_CHOICES = {theirs: ours for ours, theirs in _OPENAI_CHOICES.items()}
_OVERFLOW = "context_length_exceeded"
_QUOTA = "insufficient_quota"

# Inside a stream there is no HTTP status; the error's type or code replaces it.
_STATUSES = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    _OVERFLOW: 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout": 408,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "requests": 429,
    "tokens": 429,
    _QUOTA: 429,
}

_TYPES_AND_CODES: dict[int, tuple[str, str | None]] = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("not_found_error", None),
    408: ("timeout", None),
    429: ("requests", "rate_limit_exceeded"),
}


def openai_session_fields(model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
    """One cache key per session; the longest TTL where it is free, the default TTL where writes are charged."""
    rules = model.cache
    if rules.kind == "none" or not model.supports_prompt_caching:
        return ()
    key = ("prompt_cache_key", encode_string(fit_cache_key(session_id, CACHE_KEY_CHARS_MAX)).decode())
    # OpenAI, "Prompt caching": GPT-5.6 and later take `prompt_cache_options` and charge 1.25x for writes; older models
    # take `prompt_cache_retention`, and their writes are free.
    if rules.kind == "hybrid":
        # Implicit mode writes the end of the newest message and looks back over 20 earlier message ends. Explicit mode
        # would look up only the breakpoints of the current request.
        return (key, ("prompt_cache_options", '{"mode":"implicit","ttl":"30m"}'))
    if rules.kind == "implicit" and EXTENDED_RETENTION in rules.ttls_seconds:
        return (key, ("prompt_cache_retention", f'"{EXTENDED_RETENTION}"'))
    return (key,)


def fit_cache_key(session_id: str, chars_max: int) -> str:
    """The id itself, or its digest if it is too long."""
    return session_id if len(session_id) <= chars_max else sha256_hex(replace_surrogates(session_id).encode())


def encode_image_url(source: Base64Source | UrlSource | FileSource) -> str:
    match source:
        case Base64Source(media_type=media_type, data=encoded):
            return f"data:{media_type};base64,{encoded}"
        case UrlSource(url=url):
            return url
        case FileSource(file_id=file_id):
            return file_id


def decode_image_url(url: str) -> Base64Source | UrlSource:
    inline = _DATA_URL.fullmatch(url)
    return Base64Source(inline[1], inline[2]) if inline else UrlSource(url)


def normalize_image(image: Image) -> Image:
    """The image as it will be decoded again: a data URL and base64 data have the same encoding."""
    return image if isinstance(image.source, FileSource) else Image(decode_image_url(encode_image_url(image.source)))


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


_decode_choice = msgspec.json.Decoder(_Choice).decode


def encode_openai_tool_choice(tool_choice_json: str, *, nested: bool) -> dict[str, bytes]:
    """The request members for a tool choice; `nested` is the format of Chat Completions."""
    choice = decode_or_none(_decode_choice, encode_json_text(tool_choice_json))
    if choice is None or (choice.type == "tool") != (choice.name is not None):
        raise UserError('the tool choice must be {"type": "auto"}, "any" or "none", or a "tool" with its "name"')
    encoded = encode_string(_OPENAI_CHOICES.get(choice.type, ""))
    if choice.name is not None:
        name = b'"name":' + encode_string(choice.name)
        encoded = b'{"type":"function","function":{%b}}' % name if nested else b'{"type":"function",%b}' % name
    return {TOOL_CHOICE_FIELD: encoded} | ({PARALLEL_FIELD: b"false"} if choice.disable_parallel_tool_use else {})


def decode_openai_tool_choice(top: Mapping[str, bytes], *, nested: bool) -> tuple[str | None, frozenset[str]]:
    """The choice in our format, and the members it was decoded from; a choice only OpenAI has stays an extra field."""
    choice = _canonical_choice(msgspec.json.decode(top.get(TOOL_CHOICE_FIELD, b"null")), nested=nested)
    if choice is None:
        return None, frozenset()
    names = frozenset({TOOL_CHOICE_FIELD})
    if top.get(PARALLEL_FIELD) == b"false":
        choice["disable_parallel_tool_use"] = True
        names |= {PARALLEL_FIELD}
    return encode_json(choice).decode(), names


def _canonical_choice(choice: Json, *, nested: bool) -> dict[str, Json] | None:
    match choice:
        case str() if choice in _CHOICES:
            return {"type": _CHOICES[choice]}
        case {"type": "function", "function": {"name": str(name), **inner}, **others} if nested and not others | inner:
            return {"type": "tool", "name": name}
        case {"type": "function", "name": str(name), **others} if not nested and not others:
            return {"type": "tool", "name": name}
        case _:
            return None


class _CacheDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    """The provider's own counters; None if missing. `prompt_tokens` includes cache reads and writes."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CacheDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    total_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek; `prompt_cache_miss_tokens` is the rest of the prompt.
    cached_tokens: int | None = None  # Moonshot.


def chat_usage_buckets(wire: ChatUsage, *, for_5m: bool = False) -> Usage:
    """`for_5m`: the TTL of cache writes is 5 minutes."""
    details = wire.prompt_tokens_details or _CacheDetails()
    written = details.cache_write_tokens
    total, output = wire.prompt_tokens, _count_output(wire)
    reads = (details.cached_tokens, wire.prompt_cache_hit_tokens, wire.cached_tokens)
    read = next((count for count in reads if count), None)
    if for_5m:
        return _split_inclusive_usage(total, output, read, written_5m=written)
    return _split_inclusive_usage(total, output, read, written_other=written)


def _count_output(wire: ChatUsage) -> int:
    """The output tokens with the reasoning tokens, which are billed as output."""
    output, details = clamp_token_count(wire.completion_tokens), wire.completion_tokens_details or _OutputDetails()
    reasoning = clamp_token_count(details.reasoning_tokens)
    # xAI counts them apart: "counted separately from completion_tokens, but will be counted in the total_tokens"
    # (docs.x.ai, "Consumption and Rate Limits"). Everyone else includes them in `completion_tokens`.
    is_apart = (
        reasoning and clamp_token_count(wire.total_tokens) == clamp_token_count(wire.prompt_tokens) + output + reasoning
    )
    return output + reasoning if is_apart else output


def encode_chat_usage(usage: Usage) -> dict[str, int | dict[str, int]]:
    return {
        "prompt_tokens": usage.tokens_sent,
        "completion_tokens": usage.output,
        "total_tokens": usage.tokens_sent + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
    }


class ResponsesUsage(msgspec.Struct, frozen=True):
    """`input_tokens` includes cache reads and writes."""

    input_tokens: int | None = None
    input_tokens_details: _CacheDetails | None = None
    output_tokens: int | None = None


def responses_usage_buckets(wire: ResponsesUsage | None) -> Usage:
    if wire is None:
        return Usage()
    details = wire.input_tokens_details or _CacheDetails()
    read, written = details.cached_tokens, details.cache_write_tokens
    return _split_inclusive_usage(wire.input_tokens, wire.output_tokens, read, written_other=written)


def encode_responses_usage(usage: Usage) -> dict[str, int | dict[str, int]]:
    return {
        "input_tokens": usage.tokens_sent,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.tokens_sent + usage.output,
    }


def _split_inclusive_usage(
    total: int | None,
    output: int | None,
    read: int | None,
    *,
    written_5m: int | None = None,
    written_other: int | None = None,
) -> Usage:
    """Buckets that add up to the total. Reads and writes that exceed it together are cut off."""
    # input = total - read - written. Anthropic's counters are disjoint already and do not need this.
    uncached = clamp_token_count(total)
    cached: list[int] = []
    for reported in (read, written_5m, written_other):
        cached.append(min(clamp_token_count(reported), uncached))
        uncached -= cached[-1]
    return Usage(
        input=uncached,
        cache_read=cached[0],
        cache_write_5m=cached[1],
        cache_write_other=cached[2],
        output=clamp_token_count(output),
    )


class _WireError(msgspec.Struct, frozen=True):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None


class _ErrorBody(_WireError, frozen=True):
    """The error is either nested under `error` or spread over the top level."""

    error: _WireError | str | None = None


_decode_body = msgspec.json.Decoder(_ErrorBody).decode


def decode_openai_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    error = _decode_error(body)
    kind: FailureKind | None = None
    if _QUOTA in (error.code, error.type):
        # An exhausted quota has the status of a rate limit (429), but waiting does not help.
        kind = "other"
    elif error.code == _OVERFLOW:
        kind = "context_overflow"
    return make_refusal(status, headers, error.message or "", kind=kind)


def decode_openai_stream_error(body: bytes) -> ProviderError:
    """The error in the middle of a stream, after HTTP status 200."""
    return decode_openai_error(_status_of(_decode_error(body)), {}, body)


def encode_openai_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    """In OpenAI's format; `other` with status 429 is an exhausted quota."""
    if status is None:
        status = 400 if kind == "context_overflow" else STATUS_BY_FAILURE[kind]
    fallback = "invalid_request_error" if 400 <= status < 500 else "server_error"
    name, code = _TYPES_AND_CODES.get(status, (fallback, None))
    if kind == "context_overflow":
        code = _OVERFLOW
    if kind == "other" and status == 429:
        name = code = _QUOTA
    error = {"message": replace_surrogates(message), "type": name, "param": None, "code": code}
    return status, encode_json({"error": error})


def encode_openrouter_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    """In OpenRouter's format: the code is the HTTP status."""
    code = STATUS_BY_FAILURE[kind] if status is None else status
    return code, encode_json({"error": {"code": code, "message": replace_surrogates(message)}})


def _status_of(error: _WireError) -> int:
    if isinstance(error.code, int):
        return error.code if 400 <= error.code < 600 else 500
    return _STATUSES.get(error.code or "") or _STATUSES.get(error.type or "", 500)


def _decode_error(body: bytes) -> _WireError:
    decoded = decode_or_none(_decode_body, body) or _ErrorBody()
    if isinstance(decoded.error, str):
        return _WireError(message=decoded.error)
    return decoded.error or decoded
