"""Bedrock's event streams against AWS's own library, and their conversion into server-sent events."""

import base64
import json
from collections.abc import Iterable
from struct import pack
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.anthropic import anthropic
from holdfast.providers.bedrock import (
    Frame,
    FrameParser,
    decode_event_stream,
    encode_chunk_frame,
    encode_frame,
    read_usage_headers,
)
from holdfast.providers.tolerant_decode import find_usage
from holdfast.types.blocks import Text
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.usage import Usage

REPLY = Reply((Text("Hi there"),), "end_turn", Usage(input=9, cache_read=5, cache_write_5m=3, output=2), "m", "msg_1")


def stream_frames(*, metrics: dict[str, int] | None = None, with_usage: bool = True) -> bytes:
    """The reply as Bedrock streams it."""
    frames = []
    for event in anthropic.encode_stream(REPLY):
        members = json.loads(event.partition(b"data: ")[2])
        if not with_usage:
            members.pop("usage", None)
            members.get("message", {}).pop("usage", None)
        if metrics and members["type"] == "message_stop":
            members["amazon-bedrock-invocationMetrics"] = metrics
        frames.append(encode_chunk_frame(json.dumps(members).encode()))
    return b"".join(frames)


def decode_reply(events: bytes) -> Reply:
    (finished,) = (d for d in anthropic.make_stream_decoder().feed(events) if isinstance(d, ReplyFinished))
    return finished.reply


@given(st.binary(max_size=200), st.text(st.characters(codec="ascii"), min_size=1, max_size=40))
def test_awss_library_reads_the_frames_that_we_encode(payload: bytes, name: str) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(encode_frame(name, payload))
    (message,) = buffer
    assert message.payload == payload
    assert message.headers[":event-type"] == name


@given(st.lists(st.binary(max_size=60), max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_the_same_however_they_are_split(payloads: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(encode_frame("chunk", payload) for payload in payloads)
    parser, at = FrameParser(), 0
    frames: list[Frame] = []
    while at < len(whole):
        size = sizes[at % len(sizes)]
        frames += parser.feed(whole[at : at + size])
        at += size
    assert [frame.payload for frame in frames] == payloads
    assert not parser.is_malformed


@given(st.binary(max_size=300))
def test_bytes_that_are_no_event_stream_give_no_events(data: bytes) -> None:
    assert decode_event_stream((data,)) == b""


@given(st.data())
def test_a_damaged_frame_ends_the_stream_and_never_raises(data: st.DataObject) -> None:
    whole = bytearray(stream_frames())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    assert decode_event_stream((stream_frames(),)).startswith(decode_event_stream((bytes(whole),)))


def test_headers_of_every_type_are_skipped() -> None:
    values = {0: b"", 1: b"", 2: b"x", 3: b"xx", 4: b"xxxx", 5: b"x" * 8, 6: b"\x00\x03xyz", 8: b"x" * 8, 9: b"x" * 16}
    before = b"".join(b"\x01n" + bytes([kind]) + value for kind, value in values.items())
    payload = b'{"bytes":"e30="}'
    (frame,) = FrameParser().feed(_frame_with_headers(before + b"\x01s\x07\x00\x02ok", payload))
    assert frame.headers == {"s": "ok"}


def _frame_with_headers(headers: bytes, payload: bytes) -> bytes:
    lengths = pack(">II", 16 + len(headers) + len(payload), len(headers))
    frame = lengths + crc32(lengths).to_bytes(4) + headers + payload
    return frame + crc32(frame).to_bytes(4)


def test_claudes_events_decode_to_the_reply() -> None:
    assert decode_reply(decode_event_stream((stream_frames(),))) == REPLY


def test_the_metrics_of_the_last_event_are_the_usage_where_no_other_event_has_it() -> None:
    metrics = {
        "inputTokenCount": 9,
        "outputTokenCount": 2,
        "cacheReadInputTokenCount": 5,
        "cacheWriteInputTokenCount": 3,
        "invocationLatency": 800,
    }
    events = decode_event_stream((stream_frames(metrics=metrics, with_usage=False),))
    assert decode_reply(events).usage == REPLY.usage
    llama = encode_chunk_frame(json.dumps({"generation": "Hi", "amazon-bedrock-invocationMetrics": metrics}).encode())
    assert find_usage(decode_event_stream((llama,))) == REPLY.usage


def test_a_failure_in_the_stream_is_anthropics_error_event() -> None:
    name, kind = b":exception-type", b"throttlingException"
    headers = bytes([len(name)]) + name + b"\x07" + len(kind).to_bytes(2) + kind
    events = decode_event_stream((_frame_with_headers(headers, b'{"message":"slow down"}'),))
    assert b"event: error" in events
    assert json.loads(events.partition(b"data: ")[2]) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "slow down"},
    }


def test_converse_streams_have_their_usage_in_an_event_without_an_envelope() -> None:
    usage = {"inputTokens": 4, "outputTokens": 6, "totalTokens": 15, "cacheReadInputTokens": 5}
    frames = (
        encode_frame("contentBlockDelta", b'{"delta":{"text":"Hi"}}'),
        encode_frame("metadata", json.dumps({"usage": usage}).encode()),
    )
    assert find_usage(decode_event_stream(frames)) == Usage(input=4, cache_read=5, output=6)


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"bytes":5}', b'{"bytes":"not base64!"}', b"\xff"])
def test_an_unknown_payload_is_no_failure(payload: bytes) -> None:
    frames: Iterable[bytes] = (encode_frame("chunk", payload), encode_chunk_frame(b'{"usage":{"input_tokens":1}}'))
    assert find_usage(decode_event_stream(frames)) == Usage(input=1)


def test_usage_is_read_from_response_headers() -> None:
    headers = {
        "x-amzn-bedrock-input-token-count": "7",
        "x-amzn-bedrock-output-token-count": "3",
        "x-amzn-bedrock-cache-read-input-token-count": "2",
        "x-amzn-bedrock-cache-write-input-token-count": "1",
    }
    assert read_usage_headers(headers) == Usage(input=7, cache_read=2, cache_write_5m=1, output=3)
    assert read_usage_headers({"x-amzn-bedrock-input-token-count": "seven"}) is None
    assert read_usage_headers({}) is None


def test_a_chunk_frame_has_the_event_in_base64() -> None:
    (frame,) = FrameParser().feed(encode_chunk_frame(b"{}"))
    assert base64.b64decode(json.loads(frame.payload)["bytes"]) == b"{}"
