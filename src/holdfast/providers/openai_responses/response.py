"""Encodes a response in the format of the Responses API, complete or as a stream of events, and its cache diagnostics.

Diagnostics are `comparison_response_id` in requests and `prompt_cache_diagnostics` in responses; the reasons and
fields are those of the types in OpenAI's SDK 3.49.
"""

from collections.abc import Iterator
from itertools import count

import msgspec

from holdfast.errors import ProviderError
from holdfast.providers.errors import sanitize_message
from holdfast.providers.json_splice import (
    decode_or_none,
    encode_json_text,
    encode_string,
    extra_field,
    join_object,
    nested_field,
    split_object,
)
from holdfast.providers.openai_common import encode_responses_usage
from holdfast.providers.openai_responses.items import (
    encode_reasoning,
    is_separate_item,
    signed_item_id,
    split_summaries,
)
from holdfast.providers.openai_responses.parts import encode_output_part
from holdfast.providers.sse import encode_event, split_into_deltas
from holdfast.types.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters
from holdfast.types.reply import (
    REASON_CHARS_MAX,
    CacheDiagnosis,
    DiagnosisOutcome,
    Reply,
    StopReason,
    make_miss_diagnosis,
)

DIAGNOSTICS_FIELD = "prompt_cache_diagnostics"
CACHE_OPTIONS_FIELD = "prompt_cache_options"
COMPARISON_FIELD = "comparison_response_id"
_MISS = "cache_miss"
_OUTCOMES: dict[str, DiagnosisOutcome] = {
    "cache_hit": "hit",
    "comparison_response_not_found": "not_found",
    "unavailable": "unavailable",
}
_TYPES = {outcome: name for name, outcome in _OUTCOMES.items()}


class _Diagnostics(msgspec.Struct, frozen=True):
    type: str
    reason: str | None = None
    cache_missed_tokens: int | None = None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def request_responses_diagnosis(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Unchanged if there is nothing to compare with. The other options keep their values and their order."""
    extra = dict(parameters.extra)
    current = extra_field(parameters, CACHE_OPTIONS_FIELD) if CACHE_OPTIONS_FIELD in extra else {}
    if previous_response_id is None or not isinstance(current, dict) or COMPARISON_FIELD in current:
        return parameters
    options = split_object(encode_json_text(extra[CACHE_OPTIONS_FIELD])) if CACHE_OPTIONS_FIELD in extra else {}
    encoded = join_object({**options, COMPARISON_FIELD: encode_string(previous_response_id)})
    return msgspec.structs.replace(parameters, extra=tuple({**extra, CACHE_OPTIONS_FIELD: encoded.decode()}.items()))


def requests_responses_comparison(parameters: Parameters) -> bool:
    return nested_field(extra_field(parameters, CACHE_OPTIONS_FIELD), COMPARISON_FIELD) is not None


def is_responses_diagnosis_refusal(error: ProviderError) -> bool:
    return error.kind == "invalid_request" and COMPARISON_FIELD in str(error).lower()


def decode_responses_diagnosis(raw: bytes) -> CacheDiagnosis | None:
    """None if the field is absent or unreadable. An unknown type is kept as the reason."""
    diagnostics = decode_or_none(_decode, raw)
    if diagnostics is None:
        return None
    if diagnostics.type == _MISS:
        return make_miss_diagnosis(sanitize_message(diagnostics.reason or ""), diagnostics.cache_missed_tokens)
    if diagnostics.type in _OUTCOMES:
        return CacheDiagnosis(_OUTCOMES[diagnostics.type])
    return CacheDiagnosis("unavailable", sanitize_message(diagnostics.type)[:REASON_CHARS_MAX])


def encode_responses_diagnosis(diagnosis: CacheDiagnosis) -> bytes:
    """The value of the field; OpenAI has no type for a pending comparison."""
    if diagnosis.outcome != "miss":
        return encode_json({"type": _TYPES.get(diagnosis.outcome, "unavailable")})
    miss = (encode_string(diagnosis.reason), diagnosis.missed_tokens)
    return b'{"type":"cache_miss","reason":%b,"cache_missed_tokens":%d}' % miss


_INCOMPLETE_STATUSES: dict[StopReason, tuple[str, str | None]] = {
    "max_tokens": ("incomplete", "max_output_tokens"),
    "refusal": ("incomplete", "content_filter"),
    "error": ("incomplete", None),
    "cancelled": ("cancelled", None),
}
"""Status and reason of responses that did not end normally; all others are `completed`."""

_StreamEvent = tuple[str, bytes]
"""The name of an event, and its members after `type` and `sequence_number`."""


class _Message(msgspec.Struct, frozen=True):
    parts: tuple[Text | Opaque, ...]


_Item = _Message | ToolUse | Thinking | Opaque


def encode_responses_reply(reply: Reply) -> bytes:
    items = _items_of(reply.content)
    output = b",".join(_encode_item(item, _id(reply, index, item)) for index, item in enumerate(items))
    status, reason = _INCOMPLETE_STATUSES.get(reply.stop_reason, ("completed", None))
    diagnosis = b""
    if reply.diagnosis is not None:
        diagnosis = b',"%b":%b' % (DIAGNOSTICS_FIELD.encode(), encode_responses_diagnosis(reply.diagnosis))
    usage = encode_json(encode_responses_usage(reply.usage))
    return _response(reply, status, output=output, reason=reason, usage=usage + diagnosis)


def encode_responses_stream(reply: Reply) -> Iterator[bytes]:
    """One event per chunk; usage is only in the last."""
    number = count()
    for name, members in _stream_events(reply):
        body = b'{"type":"%b","sequence_number":%d,%b}' % (name.encode(), next(number), members)
        yield encode_event(body, name)


def _stream_events(reply: Reply) -> Iterator[_StreamEvent]:
    in_progress = b'"response":' + _response(reply, "in_progress")
    yield "response.created", in_progress
    yield "response.in_progress", in_progress
    for index, item in enumerate(_items_of(reply.content)):
        id = _id(reply, index, item)
        at = b'"output_index":%d' % index
        yield "response.output_item.added", at + b',"item":' + _encode_start(item, id)
        yield from _delta_events(item, at + b',"item_id":' + encode_string(id))
        yield "response.output_item.done", at + b',"item":' + _encode_item(item, id)
    status, _ = _INCOMPLETE_STATUSES.get(reply.stop_reason, ("completed", None))
    name = "response.completed" if status == "completed" else "response.incomplete"
    yield name, b'"response":' + encode_responses_reply(reply)


def _items_of(content: tuple[Block, ...]) -> list[_Item]:
    """Adjacent texts share a message. Blocks that OpenAI does not have, such as redacted thinking, are left out."""
    items: list[_Item] = []
    for block in content:
        match block:
            case ToolUse() | Thinking():
                items.append(block)
            case Opaque(kind=kind) if is_separate_item("assistant", kind):
                items.append(block)
            case Text() | Opaque():
                last = items[-1] if items else None
                if isinstance(last, _Message):
                    items[-1] = _Message((*last.parts, block))
                else:
                    items.append(_Message((block,)))
            case _:
                pass
    return items


def _id(reply: Reply, index: int, item: _Item) -> str:
    match item:
        case _Message():
            return f"msg_{reply.id}_{index}"
        case ToolUse():
            return f"fc_{reply.id}_{index}"
        case Thinking():
            return signed_item_id(item) or f"rs_{reply.id}_{index}"
        case Opaque():
            return ""


def _encode_item(item: _Item, id: str, *, status: str = "completed") -> bytes:
    match item:
        case _Message(parts=parts):
            return _encode_message(id, b",".join(map(encode_output_part, parts)), status)
        case ToolUse():
            return _encode_call(item, id, item.arguments_json, status)
        case Thinking():
            return encode_reasoning(item, id=id)
        case Opaque(raw=raw):
            return raw


def _encode_start(item: _Item, id: str) -> bytes:
    """The item before its first delta."""
    match item:
        case _Message():
            item = _Message(())
        case ToolUse():
            item = ToolUse(item.id, item.name, "")
        case Thinking():
            item = Thinking("")
        case Opaque():
            pass
    return _encode_item(item, id, status="in_progress")


def _encode_message(id: str, content: bytes, status: str) -> bytes:
    template = b'{"type":"message","id":%b,"status":"%b","role":"assistant","content":[%b]}'
    return template % (encode_string(id), status.encode(), content)


def _encode_call(call: ToolUse, id: str, arguments: str, status: str) -> bytes:
    template = b'{"type":"function_call","id":%b,"call_id":%b,"name":%b,"arguments":%b,"status":"%b"}'
    return template % (*map(encode_string, (id, call.id, call.name, arguments)), status.encode())


def _delta_events(item: _Item, at: bytes) -> Iterator[_StreamEvent]:
    """The events between an item's `added` and `done`."""
    match item:
        case _Message(parts=parts):
            for index, part in enumerate(parts):
                yield from _part_delta_events(part, at + b',"content_index":%d' % index)
        case ToolUse(arguments_json=arguments, name=name):
            for delta in split_into_deltas(arguments):
                yield "response.function_call_arguments.delta", at + b',"delta":' + encode_string(delta)
            done = at + b',"name":%b,"arguments":%b' % (encode_string(name), encode_string(arguments))
            yield "response.function_call_arguments.done", done
        case Thinking():
            for index, text in enumerate(split_summaries(item)):
                yield from _summary_delta_events(text, at + b',"summary_index":%d' % index)
        case Opaque():
            pass


def _part_delta_events(part: Text | Opaque, at: bytes) -> Iterator[_StreamEvent]:
    whole = encode_output_part(part)
    if isinstance(part, Opaque):
        yield "response.content_part.added", at + b',"part":' + whole
    else:
        yield "response.content_part.added", at + b',"part":' + encode_output_part(Text(""))
        for delta in split_into_deltas(part.text):
            yield "response.output_text.delta", at + b',"delta":' + encode_string(delta) + b',"logprobs":[]'
        yield "response.output_text.done", at + b',"text":' + encode_string(part.text) + b',"logprobs":[]'
    yield "response.content_part.done", at + b',"part":' + whole


def _summary_delta_events(text: str, at: bytes) -> Iterator[_StreamEvent]:
    part = b',"part":{"type":"summary_text","text":%b}'
    yield "response.reasoning_summary_part.added", at + part % encode_string("")
    for delta in split_into_deltas(text):
        yield "response.reasoning_summary_text.delta", at + b',"delta":' + encode_string(delta)
    yield "response.reasoning_summary_text.done", at + b',"text":' + encode_string(text)
    yield "response.reasoning_summary_part.done", at + part % encode_string(text)


def _response(
    reply: Reply, status: str, *, output: bytes = b"", reason: str | None = None, usage: bytes = b"null"
) -> bytes:
    """`created_at` is always 0, because the encoding must not depend on a clock."""
    id, model = encode_string(reply.id), encode_string(reply.model)
    details = encode_json(None if reason is None else {"reason": reason})
    return (
        b'{"id":%b,"object":"response","created_at":0,"status":"%b","error":null,"incomplete_details":%b,'
        b'"instructions":null,"metadata":{},"model":%b,"output":[%b],"parallel_tool_calls":true,"temperature":null,'
        b'"tool_choice":"auto","tools":[],"top_p":null,"usage":%b}'
    ) % (id, status.encode(), details, model, output, usage)
