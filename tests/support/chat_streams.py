"""Streams of chat completions in a provider's format."""

import json
from collections.abc import Iterable

from holdfast.providers.adapter import Adapter, StreamDecoder
from holdfast.types.reply import Delta, Reply, ReplyFinished

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, object] | None = None, **fields: object) -> bytes:
    """One event; `finish_reason` goes to the choice, everything else to the top."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": fields.pop("finish_reason", None)}
    decode_stream = {"id": "r1", "model": "m", "object": "chat.completion.chunk", "choices": [choice], **fields}
    return b"data: " + json.dumps(decode_stream).encode() + b"\n\n"


def usage(prompt: int = 0, output: int = 0, **details: int) -> bytes:
    decode_stream = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
    return chunk(choices=[], usage=decode_stream)


def call_delta(index: int | None = None, **fields: object) -> dict[str, object]:
    """A delta with a part of a tool call."""
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    place = {} if index is None else {"index": index}
    return {"tool_calls": [{**place, **fields, "function": function}]}


def feed_events(adapter: Adapter, events: Iterable[bytes]) -> tuple[StreamDecoder, list[Delta]]:
    reader = adapter.make_stream_decoder()
    return reader, [delta for event in events for delta in reader.feed(event)]


def decode_stream(adapter: Adapter, *events: bytes) -> Reply:
    """The reply of a complete stream, which must be reported exactly once."""
    _, deltas = feed_events(adapter, events)
    (finished,) = [delta for delta in deltas if isinstance(delta, ReplyFinished)]
    assert deltas[-1] is finished
    return finished.reply


def decode_cut_stream(adapter: Adapter, *events: bytes) -> Reply | None:
    """The partial reply of a stream that breaks off here."""
    reader, deltas = feed_events(adapter, events)
    assert not any(isinstance(delta, ReplyFinished) for delta in deltas)
    return reader.partial()
