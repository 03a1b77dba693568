"""Encodes a response in Gemini's format, complete or as a stream of chunks."""

from collections.abc import Iterator
from itertools import pairwise

from holdfast.providers.gemini.encode import lower_gemini_entry
from holdfast.providers.gemini.parts import encode_gemini_parts
from holdfast.providers.gemini.stream import encode_gemini_usage
from holdfast.providers.json_splice import encode_string
from holdfast.providers.sse import encode_event, split_into_deltas
from holdfast.types.blocks import Block, Text, Thinking
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry
from holdfast.types.reply import Reply, StopReason

_REASONS: dict[StopReason, bytes] = {
    "end_turn": b"STOP",
    "tool_use": b"STOP",
    "stop_sequence": b"STOP",
    "max_tokens": b"MAX_TOKENS",
    "refusal": b"SAFETY",
    "error": b"OTHER",
}


def encode_gemini_reply(reply: Reply) -> bytes:
    return _chunk(reply, b",".join(encode_gemini_parts(_lowered_content(reply))), last=True)


def encode_gemini_stream(reply: Reply) -> Iterator[bytes]:
    """One part per chunk; the last chunk has the finish reason and the usage."""
    parts = list(encode_gemini_parts(tuple(_split(_lowered_content(reply))))) or [b""]
    for part in parts[:-1]:
        yield encode_event(_chunk(reply, part, last=False))
    yield encode_event(_chunk(reply, parts[-1], last=True))


def _lowered_content(reply: Reply) -> tuple[Block, ...]:
    lowered = lower_gemini_entry(HistoryEntry("assistant", reply.content))
    return lowered.content if lowered else ()


def _split(content: tuple[Block, ...]) -> Iterator[Block]:
    """Split text into several blocks, except where it is signed: a signature covers the whole part that it is on."""
    for previous, block in pairwise((None, *content)):
        match block:
            case Text(text=text) if not (isinstance(previous, Thinking) and previous.signature):
                yield from map(Text, split_into_deltas(text))
            case Thinking(text=text, signature=signature) if text:
                *first, last = split_into_deltas(text)
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
    usage = b'"usageMetadata":%b,' % encode_json(encode_gemini_usage(reply.usage)) if last else b""
    return (
        b'{"candidates":[{"content":{"role":"model","parts":[%b]}%b,"index":0}],%b"modelVersion":%b,"responseId":%b}'
    ) % (parts, finish, usage, encode_string(reply.model), encode_string(reply.id))
