"""How a chat reply is spelled, whole or as a stream of chunks; no clock is asked, so it was made at second 0."""

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

# The two reasons that are only ours have no word on the wire.
_FINISH_REASONS: dict[StopReason, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class _Answer(msgspec.Struct, frozen=True):
    """A reply by what stands where in a message; members are spelled, name included."""

    text: str
    details: tuple[Reasoning, ...]
    members: tuple[bytes, ...]
    calls: tuple[ToolUse | Opaque, ...]


def _answer(reply: Reply, flavour: Flavour) -> _Answer:
    """Parts of content that are not text have no place in an answer."""
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
    kept = tuple(details) if flavour.keeps_reasoning else ()
    return _Answer(text_of(reply.content), kept, tuple(members), tuple(calls))


def write_reply(reply: Reply, flavour: Flavour) -> bytes:
    answer = _answer(reply, flavour)
    said = {"content": b"null", "refusal": b"null"} | ({_text_name(reply): quoted(answer.text)} if answer.text else {})
    members = [b'"role":"assistant"', *(quoted(name) + b":" + value for name, value in said.items())]
    if answer.details:
        members.append(b'"%b":[%b]' % (MEMBER.encode(), b",".join(map(spell_detail, answer.details))))
    members += answer.members
    if answer.calls:
        members.append(b'"tool_calls":[%b]' % b",".join(map(_spell_call, answer.calls)))
    choice = b'{"index":0,"message":{%b},"logprobs":null,"finish_reason":%b}'
    chosen = choice % (b",".join(members), plain_json(_finish_reason(reply, answer)))
    return _completion(reply, b"chat.completion", chosen, _took(reply))


def write_stream(reply: Reply, flavour: Flavour) -> Iterator[bytes]:
    """What the model thought, what it said, its calls, why it ended, and what it took."""
    answer = _answer(reply, flavour)
    yield _chunk(reply, b'"role":"assistant","content":""')
    for index, block in enumerate(answer.details):
        for detail in _grow_detail(block, index):
            yield _chunk(reply, b'"%b":[%b]' % (MEMBER.encode(), detail))
    for part in delta_parts(answer.text):
        yield _chunk(reply, quoted(_text_name(reply)) + b":" + quoted(part))
    for member in answer.members:
        yield _chunk(reply, member)
    for index, call in enumerate(answer.calls):
        for delta in _grow_call(call):
            yield _chunk(reply, b'"tool_calls":[%b]' % _at(index, delta))
    yield _chunk(reply, b"", finish_reason=_finish_reason(reply, answer))
    yield written_event(_completion(reply, b"chat.completion.chunk", b"", _took(reply)))
    yield written_event(DONE)


def _completion(reply: Reply, kind: bytes, choice: bytes, took: bytes = b"") -> bytes:
    return b'{"id":%b,"object":"%b","created":0,"model":%b,"system_fingerprint":null,"choices":[%b]%b}' % (
        quoted(reply.id),
        kind,
        quoted(reply.model),
        choice,
        took,
    )


def _took(reply: Reply) -> bytes:
    return b',"usage":' + plain_json(wire_usage(reply.usage))


def _chunk(reply: Reply, delta: bytes, *, finish_reason: str | None = None) -> bytes:
    choice = b'{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b}' % (delta, plain_json(finish_reason))
    return written_event(_completion(reply, b"chat.completion.chunk", choice))


def _text_name(reply: Reply) -> str:
    """Under which name of the message its text stands."""
    return "refusal" if reply.stop_reason == "refusal" else "content"


def _finish_reason(reply: Reply, answer: _Answer) -> str | None:
    """A refusal in words ends like any other answer."""
    return "stop" if reply.stop_reason == "refusal" and answer.text else _FINISH_REASONS.get(reply.stop_reason)


def _spell_call(call: ToolUse | Opaque) -> bytes:
    return spell_call(call) if isinstance(call, ToolUse) else call.raw


def _grow_call(call: ToolUse | Opaque) -> Iterator[bytes]:
    if isinstance(call, Opaque):
        yield call.raw
        return
    yield spell_call(ToolUse(call.id, call.name, ""))
    for part in delta_parts(call.arguments_json):
        yield b'{"function":{"arguments":%b}}' % quoted(part)


def _grow_detail(block: Reasoning, index: int) -> Iterator[bytes]:
    """Details that we do not know have their place in themselves."""
    if isinstance(block, Opaque):
        yield block.raw
        return
    if isinstance(block, Thinking):
        for part in delta_parts(block.text):
            yield _at(index, spell_detail(Thinking(part)))
        block = Thinking("", block.signature)
    yield _at(index, spell_detail(block))


def _at(index: int, delta: bytes) -> bytes:
    return b'{"index":%d,%b' % (index, delta.lstrip()[1:])
