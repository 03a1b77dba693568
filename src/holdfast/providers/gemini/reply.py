"""Encodes a response in Gemini's format, complete or as a stream of chunks."""

from collections.abc import Iterator
from itertools import pairwise

from holdfast.canonical.blocks import Block, Text, Thinking
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Passage
from holdfast.canonical.reply import Reply, StopReason
from holdfast.providers.gemini.lower import lower
from holdfast.providers.gemini.parts import spell_parts
from holdfast.providers.gemini.usage import wire_usage
from holdfast.providers.members import quoted
from holdfast.providers.streaming import delta_parts, written_event

_REASONS: dict[StopReason, bytes] = {
    "end_turn": b"STOP",
    "tool_use": b"STOP",
    "stop_sequence": b"STOP",
    "max_tokens": b"MAX_TOKENS",
    "refusal": b"SAFETY",
    "error": b"OTHER",
}


def write_reply(reply: Reply) -> bytes:
    return _chunk(reply, b",".join(spell_parts(_lowered_content(reply))), last=True)


def write_stream(reply: Reply) -> Iterator[bytes]:
    """One part per chunk; the last chunk has the finish reason and the usage."""
    parts = list(spell_parts(tuple(_split(_lowered_content(reply))))) or [b""]
    for part in parts[:-1]:
        yield written_event(_chunk(reply, part, last=False))
    yield written_event(_chunk(reply, parts[-1], last=True))


def _lowered_content(reply: Reply) -> tuple[Block, ...]:
    lowered = lower(Passage("assistant", reply.content))
    return lowered.content if lowered else ()


def _split(content: tuple[Block, ...]) -> Iterator[Block]:
    """Split text into several blocks, except where it is signed: a signature covers the whole part that it is on."""
    for previous, block in pairwise((None, *content)):
        match block:
            case Text(text=text) if not (isinstance(previous, Thinking) and previous.signature):
                yield from map(Text, delta_parts(text))
            case Thinking(text=text, signature=signature) if text:
                *first, last = delta_parts(text)
                yield from map(Thinking, first)
                yield Thinking(last, signature)
            case None:
                pass
            case _:
                yield block


def _chunk(reply: Reply, parts: bytes, *, last: bool) -> bytes:
    reason = _REASONS.get(reply.stop_reason) if last else None
    finish = b"" if reason is None else b',"finishReason":"%b"' % reason
    # In a stream Gemini sends the usage in the last chunk.
    usage = b'"usageMetadata":%b,' % plain_json(wire_usage(reply.usage)) if last else b""
    return (
        b'{"candidates":[{"content":{"role":"model","parts":[%b]}%b,"index":0}],%b"modelVersion":%b,"responseId":%b}'
    ) % (parts, finish, usage, quoted(reply.model), quoted(reply.id))
