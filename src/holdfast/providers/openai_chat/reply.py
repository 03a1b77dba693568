"""Encodes a Chat Completions response, complete or as a stream of chunks.

`created` is always 0, because the encoding must not depend on a clock.
"""

from collections.abc import Iterator

import msgspec

from holdfast.canonical.blocks import Opaque, RedactedThinking, Thinking, ToolUse, text_of
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply, StopReason
from holdfast.providers.members import quoted
from holdfast.providers.openai_chat.flavour import Flavour
from holdfast.providers.openai_chat.kinds import CALL, MESSAGE, REASONING
from holdfast.providers.openai_chat.reasoning import MEMBER, Reasoning, spell_detail
from holdfast.providers.openai_chat.spell import spell_call
from holdfast.providers.openai_chat.stream import DONE
from holdfast.providers.openai_chat.usage import wire_usage
from holdfast.providers.streaming import delta_parts, written_event

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


def _wire_message(reply: Reply, flavour: Flavour) -> _WireMessage:
    """Content parts other than text are dropped: a response cannot have them."""
    details: list[Reasoning] = []
    members: list[bytes] = []
    calls: list[ToolUse | Opaque] = []
    for block in reply.content:
        match block:
            case Thinking() | RedactedThinking():
                details.append(block)
            case ToolUse():
                calls.append(block)
            case Opaque(kind=kind) if kind.startswith(REASONING):
                details.append(block)
            case Opaque(kind=kind) if kind.startswith(CALL):
                calls.append(block)
            case Opaque(kind=kind, raw=raw) if kind.startswith(MESSAGE):
                members.append(quoted(kind.removeprefix(MESSAGE)) + b":" + raw)
            case _:
                pass
    carried_details = tuple(details) if flavour.keeps_reasoning else ()
    return _WireMessage(text_of(reply.content), carried_details, tuple(members), tuple(calls))


def write_reply(reply: Reply, flavour: Flavour) -> bytes:
    message = _wire_message(reply, flavour)
    texts = {"content": b"null", "refusal": b"null"}
    if message.text:
        texts[_text_name(reply)] = quoted(message.text)
    members = [b'"role":"assistant"', *(quoted(name) + b":" + value for name, value in texts.items())]
    if message.details:
        members.append(b'"%b":[%b]' % (MEMBER.encode(), b",".join(map(spell_detail, message.details))))
    members += message.members
    if message.calls:
        members.append(b'"tool_calls":[%b]' % b",".join(map(_encode_call, message.calls)))
    template = b'{"index":0,"message":{%b},"logprobs":null,"finish_reason":%b}'
    choice = template % (b",".join(members), plain_json(_finish_reason(reply, message)))
    return _completion(reply, b"chat.completion", choice, _usage_member(reply))


def write_stream(reply: Reply, flavour: Flavour) -> Iterator[bytes]:
    """Reasoning, text, other members, calls, finish reason, usage."""
    message = _wire_message(reply, flavour)
    yield _chunk(reply, b'"role":"assistant","content":""')
    for index, block in enumerate(message.details):
        for detail in _detail_deltas(block, index):
            yield _chunk(reply, b'"%b":[%b]' % (MEMBER.encode(), detail))
    for part in delta_parts(message.text):
        yield _chunk(reply, quoted(_text_name(reply)) + b":" + quoted(part))
    for member in message.members:
        yield _chunk(reply, member)
    for index, call in enumerate(message.calls):
        for delta in _call_deltas(call):
            yield _chunk(reply, b'"tool_calls":[%b]' % _with_index(index, delta))
    yield _chunk(reply, b"", finish_reason=_finish_reason(reply, message))
    yield written_event(_completion(reply, b"chat.completion.chunk", b"", _usage_member(reply)))
    yield written_event(DONE)


def _completion(reply: Reply, kind: bytes, choice: bytes, usage_member: bytes = b"") -> bytes:
    return b'{"id":%b,"object":"%b","created":0,"model":%b,"system_fingerprint":null,"choices":[%b]%b}' % (
        quoted(reply.id),
        kind,
        quoted(reply.model),
        choice,
        usage_member,
    )


def _usage_member(reply: Reply) -> bytes:
    return b',"usage":' + plain_json(wire_usage(reply.usage))


def _chunk(reply: Reply, delta: bytes, *, finish_reason: str | None = None) -> bytes:
    choice = b'{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b}' % (delta, plain_json(finish_reason))
    return written_event(_completion(reply, b"chat.completion.chunk", choice))


def _text_name(reply: Reply) -> str:
    """The member of the message that holds its text."""
    return "refusal" if reply.stop_reason == "refusal" else "content"


def _finish_reason(reply: Reply, message: _WireMessage) -> str | None:
    """A refusal with text ends like any other message."""
    return "stop" if reply.stop_reason == "refusal" and message.text else _FINISH_REASONS.get(reply.stop_reason)


def _encode_call(call: ToolUse | Opaque) -> bytes:
    return spell_call(call) if isinstance(call, ToolUse) else call.raw


def _call_deltas(call: ToolUse | Opaque) -> Iterator[bytes]:
    if isinstance(call, Opaque):
        yield call.raw
        return
    yield spell_call(ToolUse(call.id, call.name, ""))
    for part in delta_parts(call.arguments_json):
        yield b'{"function":{"arguments":%b}}' % quoted(part)


def _detail_deltas(block: Reasoning, index: int) -> Iterator[bytes]:
    """Carried details include their own index."""
    if isinstance(block, Opaque):
        yield block.raw
        return
    if isinstance(block, Thinking):
        for part in delta_parts(block.text):
            yield _with_index(index, spell_detail(Thinking(part)))
        block = Thinking("", block.signature)
    yield _with_index(index, spell_detail(block))


def _with_index(index: int, delta: bytes) -> bytes:
    return b'{"index":%d,%b' % (index, delta.lstrip()[1:])
