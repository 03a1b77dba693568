"""Anthropic's responses: encodes them, complete or as a stream of events, with their usage, errors and diagnostics.

Usage counters become disjoint buckets, and back. The `diagnostics` field of requests and responses explains cache
misses: a public beta since 2026-05-13 (Anthropic, "Cache diagnostics").
"""

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.anthropic.blocks import encode_anthropic_block
from holdfast.providers.errors import STATUS_BY_FAILURE, make_refusal, sanitize_message
from holdfast.providers.json_splice import decode_or_none, encode_string, extra_field, join_object, nested_field
from holdfast.providers.sse import encode_event, split_into_deltas
from holdfast.types.blocks import Block, Text, Thinking, ToolUse, replace_surrogates
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters
from holdfast.types.reply import CacheDiagnosis, DiagnosisOutcome, Reply, make_miss_diagnosis
from holdfast.types.usage import Usage, clamp_token_count


class CacheCreation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class UsageCounters(msgspec.Struct, frozen=True):
    """The provider's own counters; None if missing. `input_tokens` excludes cache reads and writes."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens: int | None = None


class UsageIteration(UsageCounters, frozen=True):
    type: str = ""


class AnthropicUsage(UsageCounters, frozen=True):
    iterations: tuple[UsageIteration, ...] | None = None


def merge_anthropic_usage(before: AnthropicUsage, later: AnthropicUsage) -> AnthropicUsage:
    """Counters in `message_delta` are cumulative, so each one that is present replaces the previous value."""
    changes = {name: value for name in later.__struct_fields__ if (value := getattr(later, name)) is not None}
    return msgspec.structs.replace(before, **changes)


def anthropic_usage_buckets(wire: AnthropicUsage) -> Usage:
    # The top-level counters leave out a server-side compaction; `usage.iterations` lists it (Anthropic, "Compaction").
    response, compaction = _buckets(wire), compaction_usage(wire)
    return response if compaction is msgspec.UNSET else response + compaction


def compaction_usage(wire: AnthropicUsage) -> Usage | msgspec.UnsetType:
    """Usage of a server-side compaction; unset if there was none."""
    usages = [_buckets(iteration) for iteration in wire.iterations or () if iteration.type == "compaction"]
    return sum(usages, Usage()) if usages else msgspec.UNSET


def _buckets(counters: UsageCounters) -> Usage:
    by_ttl = counters.cache_creation or CacheCreation()
    written_1h = clamp_token_count(by_ttl.ephemeral_1h_input_tokens)
    written = counters.cache_creation_input_tokens
    if written is None:
        written = clamp_token_count(by_ttl.ephemeral_5m_input_tokens) + written_1h
    written = clamp_token_count(written)
    # The total is what is billed; what is not listed as 1h was written with the default TTL of 5m.
    written_1h = min(written_1h, written)
    return Usage(
        input=clamp_token_count(counters.input_tokens),
        cache_read=clamp_token_count(counters.cache_read_input_tokens),
        cache_write_5m=written - written_1h,
        cache_write_1h=written_1h,
        output=clamp_token_count(counters.output_tokens),
    )


def encode_anthropic_usage(usage: Usage, *, output: int) -> dict[str, int | dict[str, int]]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_5m,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "output_tokens": output,
    }


DIAGNOSTICS_FIELD = "diagnostics"
DIAGNOSTICS_BETA = "cache-diagnosis-2026-04-07"
_OUTCOMES: dict[str, DiagnosisOutcome] = {"previous_message_not_found": "not_found", "unavailable": "unavailable"}


class _Reason(msgspec.Struct, frozen=True):
    type: str
    cache_missed_input_tokens: int | None = None


class _Diagnostics(msgspec.Struct, frozen=True):
    cache_miss_reason: _Reason | None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def request_anthropic_diagnosis(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Sent with the first request too, so that the provider stores what later requests are compared with."""
    if any(name == DIAGNOSTICS_FIELD for name, _ in parameters.extra):
        return parameters
    previous = b"null" if previous_response_id is None else encode_string(previous_response_id)
    field = (DIAGNOSTICS_FIELD, (b'{"previous_message_id":%b}' % previous).decode())
    betas = parameters.betas if DIAGNOSTICS_BETA in parameters.betas else (*parameters.betas, DIAGNOSTICS_BETA)
    return msgspec.structs.replace(parameters, betas=betas, extra=(*parameters.extra, field))


def requests_anthropic_comparison(parameters: Parameters) -> bool:
    return nested_field(extra_field(parameters, DIAGNOSTICS_FIELD), "previous_message_id") is not None


def is_anthropic_diagnosis_refusal(error: ProviderError) -> bool:
    """Recognised by the name of the field or of the beta in the error message."""
    message = str(error).lower()
    return error.kind == "invalid_request" and ("diagnostics" in message or "cache-diagnosis" in message)


def decode_anthropic_diagnosis(raw: bytes) -> CacheDiagnosis | None:
    """None if the field is absent or unreadable. In a response to a request that asked, null means no divergence."""
    if raw == b"null":
        return CacheDiagnosis("hit")
    diagnostics = decode_or_none(_decode, raw)
    if diagnostics is None:
        return None
    if diagnostics.cache_miss_reason is None:
        return CacheDiagnosis("pending")
    reason = diagnostics.cache_miss_reason.type
    if reason in _OUTCOMES:
        return CacheDiagnosis(_OUTCOMES[reason])
    return make_miss_diagnosis(sanitize_message(reason), diagnostics.cache_miss_reason.cache_missed_input_tokens)


def encode_anthropic_diagnosis(diagnosis: CacheDiagnosis) -> bytes:
    """The value of the field."""
    match diagnosis.outcome:
        case "hit":
            return b"null"
        case "pending":
            return b'{"cache_miss_reason":null}'
        case "not_found" | "unavailable":
            name = next(name for name, outcome in _OUTCOMES.items() if outcome == diagnosis.outcome)
            return encode_json({"cache_miss_reason": {"type": name}})
        case "miss":
            miss = (encode_string(diagnosis.reason), diagnosis.missed_tokens)
            return b'{"cache_miss_reason":{"type":%b,"cache_missed_input_tokens":%d}}' % miss


# HTTP status and error type (Anthropic, "Errors").
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_STATUSES = {name: status for status, name in _TYPES.items()}


def encode_anthropic_reply(reply: Reply) -> bytes:
    content = b",".join(_encode_block(block) for block in reply.content)
    return _message(reply, content, _stop_reason(reply), output=reply.usage.output)


def encode_anthropic_stream(reply: Reply) -> Iterator[bytes]:
    """One event per chunk. The input counters are in `message_start`, the output counter only in `message_delta`."""
    yield _event("message_start", b'"message":' + _message(reply, b"", None, output=0))
    for index, block in enumerate(reply.content):
        at = b'"index":%d' % index
        start, deltas = _split_block(block)
        yield _event("content_block_start", at + b',"content_block":' + start)
        for kind, member, part in deltas:
            delta = encode_json({"type": kind, member: part})
            yield _event("content_block_delta", at + b',"delta":' + delta)
        yield _event("content_block_stop", at)
    template = b'"delta":{"stop_reason":%b,"stop_sequence":%b},"usage":{"output_tokens":%d}'
    values = (encode_json(_stop_reason(reply)), encode_json(reply.stop_sequence), reply.usage.output)
    yield _event("message_delta", template % values)
    yield _event("message_stop", b"")


def _message(reply: Reply, content: bytes, stop_reason: str | None, *, output: int) -> bytes:
    stop_sequence = reply.stop_sequence if stop_reason is not None else None
    members = {
        "id": encode_string(reply.id),
        "type": b'"message"',
        "role": b'"assistant"',
        "model": encode_string(reply.model),
        "content": b"[%b]" % content,
        "stop_reason": encode_json(stop_reason),
        "stop_sequence": encode_json(stop_sequence),
        "usage": encode_json(encode_anthropic_usage(reply.usage, output=output)),
    }
    if reply.diagnosis is not None:
        members[DIAGNOSTICS_FIELD] = encode_anthropic_diagnosis(reply.diagnosis)
    return join_object(members)


def _stop_reason(reply: Reply) -> str | None:
    """`cancelled` and `error` are ours only; the API has no value for them."""
    return None if reply.stop_reason in ("cancelled", "error") else reply.stop_reason


def _encode_block(block: Block) -> bytes:
    """In a response thinking always has a signature member, even if it is empty."""
    if isinstance(block, Thinking) and block.signature is None:
        return encode_anthropic_block(Thinking(block.text, ""))
    return encode_anthropic_block(block)


def _split_block(block: Block) -> tuple[bytes, list[tuple[str, str, str]]]:
    """The block of the start event, and (delta type, member, part) for each delta."""
    match block:
        case Text(text=text):
            return encode_anthropic_block(Text("")), [("text_delta", "text", part) for part in split_into_deltas(text)]
        case Thinking(text=text, signature=signature):
            deltas = [("thinking_delta", "thinking", part) for part in split_into_deltas(text)]
            signature_deltas = [("signature_delta", "signature", signature)] if signature else []
            return encode_anthropic_block(Thinking("", "")), deltas + signature_deltas
        case ToolUse():
            parts = split_into_deltas(block.arguments_json)
            deltas = [("input_json_delta", "partial_json", part) for part in parts]
            return encode_anthropic_block(ToolUse(block.id, block.name, "{}")), deltas
        case _:
            return encode_anthropic_block(block), []


# Anthropic's SDK needs the `event:` line: without it its stream helper fails.
def _event(name: str, members: bytes) -> bytes:
    body = b'{"type":"%b"%b}' % (name.encode(), b"," + members if members else b"")
    return encode_event(body, name)


class _WireError(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _WireError


_decode_body = msgspec.json.Decoder(_ErrorBody).decode


def decode_anthropic_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    return make_refusal(status, headers, _decode_error(body).message)


def decode_anthropic_stream_error(body: bytes) -> ProviderError:
    """The error in the middle of a stream, after HTTP status 200."""
    return decode_anthropic_error(_STATUSES.get(_decode_error(body).type, 500), {}, body)


def encode_anthropic_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    code = STATUS_BY_FAILURE[kind] if status is None else status
    name = _TYPES.get(code, "invalid_request_error" if 400 <= code < 500 else "api_error")
    error = {"type": name, "message": replace_surrogates(message)}
    return code, encode_json({"type": "error", "error": error})


def _decode_error(body: bytes) -> _WireError:
    decoded = decode_or_none(_decode_body, body)
    return decoded.error if decoded else _WireError()
