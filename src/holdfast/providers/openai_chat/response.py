"""Encodes a Chat Completions response, complete or as a stream of chunks.

`created` is always 0, because the encoding must not depend on a clock.
"""

from collections.abc import Iterator

import msgspec

from holdfast.providers.json_splice import encode_string
from holdfast.providers.openai_chat.encode import encode_chat_call, is_call_block, is_reasoning_block
from holdfast.providers.openai_chat.parameters import ChatVariant
from holdfast.providers.openai_chat.parts import MESSAGE_KIND, REASONING_DETAILS, Reasoning, encode_reasoning_detail
from holdfast.providers.openai_chat.stream import DONE
from holdfast.providers.openai_common import encode_chat_usage
from holdfast.providers.sse import encode_event, split_into_deltas
from holdfast.types.blocks import Opaque, RedactedThinking, Thinking, ToolUse, join_text_blocks
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply, StopReason

# `cancelled` and `error` are ours only; the API has no value for them.
_FINISH_REASONS: dict[StopReason, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class _WireMessage(msgspec.Struct, frozen=True):
    """A response sorted by the members of a message; `members` are encoded, name included."""

    text: str
    details: tuple[Reasoning, ...]
    members: tuple[bytes, ...]
    calls: tuple[ToolUse | Opaque, ...]


def _wire_message(reply: Reply, variant: ChatVariant) -> _WireMessage:
    """Content parts other than text are dropped: a response cannot have them."""
    details: list[Reasoning] = []
    members: list[bytes] = []
    calls: list[ToolUse | Opaque] = []
    for block in reply.content:
        match block:
            case Opaque(kind=kind, raw=raw) if kind.startswith(MESSAGE_KIND):
                members.append(encode_string(kind.removeprefix(MESSAGE_KIND)) + b":" + raw)
            case Thinking() | RedactedThinking() | Opaque() if is_reasoning_block(block):
                details.append(block)
            case ToolUse() | Opaque() if is_call_block(block):
                calls.append(block)
            case _:
                pass
    carried_details = tuple(details) if variant.carries_reasoning else ()
    return _WireMessage(join_text_blocks(reply.content), carried_details, tuple(members), tuple(calls))


def encode_chat_reply(reply: Reply, variant: ChatVariant) -> bytes:
    message = _wire_message(reply, variant)
    texts = {"content": b"null", "refusal": b"null"}
    if message.text:
        texts[_text_name(reply)] = encode_string(message.text)
    members = [b'"role":"assistant"', *(encode_string(name) + b":" + value for name, value in texts.items())]
    if message.details:
        details = b",".join(map(encode_reasoning_detail, message.details))
        members.append(b'"%b":[%b]' % (REASONING_DETAILS.encode(), details))
    members += message.members
    if message.calls:
        members.append(b'"tool_calls":[%b]' % b",".join(map(_encode_call, message.calls)))
    template = b'{"index":0,"message":{%b},"logprobs":null,"finish_reason":%b}'
    choice = template % (b",".join(members), encode_json(_finish_reason(reply, message)))
    return _completion(reply, b"chat.completion", choice, _usage_member(reply))


def encode_chat_stream(reply: Reply, variant: ChatVariant) -> Iterator[bytes]:
    """Reasoning, text, other members, calls, finish reason, usage."""
    message = _wire_message(reply, variant)
    yield _chunk(reply, b'"role":"assistant","content":""')
    for index, block in enumerate(message.details):
        for detail in _detail_deltas(block, index):
            yield _chunk(reply, b'"%b":[%b]' % (REASONING_DETAILS.encode(), detail))
    for part in split_into_deltas(message.text):
        yield _chunk(reply, encode_string(_text_name(reply)) + b":" + encode_string(part))
    for member in message.members:
        yield _chunk(reply, member)
    for index, call in enumerate(message.calls):
        for delta in _call_deltas(call):
            yield _chunk(reply, b'"tool_calls":[%b]' % _with_index(index, delta))
    yield _chunk(reply, b"", finish_reason=_finish_reason(reply, message))
    yield encode_event(_completion(reply, b"chat.completion.chunk", b"", _usage_member(reply)))
    yield encode_event(DONE)


def _completion(reply: Reply, kind: bytes, choice: bytes, usage_member: bytes = b"") -> bytes:
    id, model = encode_string(reply.id), encode_string(reply.model)
    template = b'{"id":%b,"object":"%b","created":0,"model":%b,"system_fingerprint":null,"choices":[%b]%b}'
    return template % (id, kind, model, choice, usage_member)


def _usage_member(reply: Reply) -> bytes:
    return b',"usage":' + encode_json(encode_chat_usage(reply.usage))


def _chunk(reply: Reply, delta: bytes, *, finish_reason: str | None = None) -> bytes:
    choice = b'{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b}' % (delta, encode_json(finish_reason))
    return encode_event(_completion(reply, b"chat.completion.chunk", choice))


def _text_name(reply: Reply) -> str:
    """The member of the message that holds its text."""
    return "refusal" if reply.stop_reason == "refusal" else "content"


def _finish_reason(reply: Reply, message: _WireMessage) -> str | None:
    """A refusal with text ends like any other message."""
    return "stop" if reply.stop_reason == "refusal" and message.text else _FINISH_REASONS.get(reply.stop_reason)


def _encode_call(call: ToolUse | Opaque) -> bytes:
    return encode_chat_call(call) if isinstance(call, ToolUse) else call.raw


def _call_deltas(call: ToolUse | Opaque) -> Iterator[bytes]:
    if isinstance(call, Opaque):
        yield call.raw
        return
    yield encode_chat_call(ToolUse(call.id, call.name, ""))
    for part in split_into_deltas(call.arguments_json):
        yield b'{"function":{"arguments":%b}}' % encode_string(part)


def _detail_deltas(block: Reasoning, index: int) -> Iterator[bytes]:
    """Carried details include their own index."""
    if isinstance(block, Opaque):
        yield block.raw
        return
    if isinstance(block, Thinking):
        for part in split_into_deltas(block.text):
            yield _with_index(index, encode_reasoning_detail(Thinking(part)))
        block = Thinking("", block.signature)
    yield _with_index(index, encode_reasoning_detail(block))


def _with_index(index: int, delta: bytes) -> bytes:
    return b'{"index":%d,%b' % (index, delta.lstrip()[1:])
