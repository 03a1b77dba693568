"""Encodes a response in Anthropic's format, complete or as a stream of events; encodes and decodes its errors."""

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.anthropic.blocks import encode_anthropic_block
from holdfast.providers.anthropic.cache_diagnostics import DIAGNOSTICS_FIELD, encode_anthropic_diagnosis
from holdfast.providers.anthropic.usage import encode_anthropic_usage
from holdfast.providers.errors import STATUS_BY_FAILURE, make_refusal
from holdfast.providers.json_splice import decode_or_none, encode_string, join_object
from holdfast.providers.sse import encode_event, split_into_deltas
from holdfast.types.blocks import Block, Text, Thinking, ToolUse, replace_surrogates
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply

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
