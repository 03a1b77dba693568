"""Compressed replies: their bytes are forwarded unchanged, and their usage is decoded on a copy."""

import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.served_gateway import (
    TIMEOUT_SECONDS,
    RawUpstream,
    ServedGateway,
    raw_upstream,
    read_message,
    serve_gateway,
)

from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.gateway.http import content_encoding
from holdfast.gateway.http.content_encoding import decompress_body

REQUEST = json.dumps(
    {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}
).encode()
USAGE = {"input_tokens": 1234, "output_tokens": 7}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "stop_reason": "end_turn",
}
REPLY = json.dumps({**MESSAGE, "content": [{"type": "text", "text": "Yes."}], "usage": USAGE}).encode()


def event(kind: str, **members: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


STREAMED = b"".join(
    (
        event("message_start", message={**MESSAGE, "content": [], "stop_reason": None, "usage": USAGE}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Yes."}),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7}),
        event("message_stop"),
    )
)


def compress_bare(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(plain) + packer.flush()


def flushed_zstd(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(plain)


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": ("identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without a frame": ("deflate", compress_bare),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", flushed_zstd),
    "two of them": ("gzip, br", lambda plain: brotli.compress(gzip.compress(plain))),
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as raw:
        yield raw


@pytest.fixture
def gateway(upstream: RawUpstream) -> Iterator[ServedGateway]:
    with serve_gateway(upstream.url) as running:
        yield running


def ask(gateway: ServedGateway) -> bytes:
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(
            b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
            % (len(REQUEST), REQUEST)
        )
        return read_message(connection)[1]


def last_call(gateway: ServedGateway) -> LlmCallCompleted | LlmCallFailed:
    (session,) = gateway.recorded_sessions()
    last = list(gateway.store.read(session))[-1].payload
    assert isinstance(last, LlmCallCompleted | LlmCallFailed)
    return last


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("coding", CODINGS)
def test_the_usage_of_a_compressed_reply_is_decoded_and_its_bytes_are_forwarded(
    upstream: RawUpstream, gateway: ServedGateway, coding: str, streamed: bool
) -> None:
    name, packed_by = CODINGS[coding]
    packed = packed_by(STREAMED if streamed else REPLY)
    kind = b"text/event-stream" if streamed else b"application/json"
    response_head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: %s\r\ncontent-encoding: %s\r\n" % (
        kind,
        name.encode(),
    )
    upstream.parts = (response_head + b"content-length: %d\r\n\r\n" % len(packed), packed)
    assert ask(gateway) == packed
    last = last_call(gateway)
    assert isinstance(last, LlmCallCompleted)
    assert (last.usage.input, last.usage.output) == (1234, 7)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "unknown"])
def test_a_wrongly_labelled_encoding_is_forwarded_and_recorded_as_undecoded(
    upstream: RawUpstream, gateway: ServedGateway, coding: str
) -> None:
    body = b"\xff\xfe not packed at all"
    response_head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-encoding: %s\r\n" % coding.encode()
    upstream.parts = (response_head + b"content-length: %d\r\n\r\n" % len(body), body)
    assert ask(gateway) == body
    assert isinstance(last_call(gateway), LlmCallFailed)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "deflate without a frame", "br", "zstd"])
def test_a_compressed_body_that_would_fill_memory_is_refused(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_encoding, "PLAIN_BYTES_MAX", 1_000_000)
    name, packed_by = CODINGS[coding]
    assert decompress_body(packed_by(bytes(1_000_000)), name) == bytes(1_000_000)
    with pytest.raises(ProviderError, match="more than"):
        decompress_body(packed_by(bytes(1_000_001)), name)


@given(st.binary(max_size=3_000), st.sampled_from(sorted(CODINGS)))
def test_a_compressed_body_is_decompressed(plain: bytes, coding: str) -> None:
    name, packed_by = CODINGS[coding]
    assert decompress_body(packed_by(plain), name) == plain


@given(st.binary(min_size=1, max_size=300), st.sampled_from(sorted(CODINGS)), st.data())
def test_an_interrupted_body_is_decompressed_as_far_as_it_goes(plain: bytes, coding: str, data: st.DataObject) -> None:
    name, packed_by = CODINGS[coding]
    packed = packed_by(plain)
    cut_off = packed[: data.draw(st.integers(0, len(packed)))]
    try:
        decompressed = decompress_body(cut_off, name)
    except ProviderError:
        return
    assert plain.startswith(decompressed) or coding.startswith(("deflate", "two"))


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate", "br", "zstd", "br, zstd", "", "x"]))
def test_arbitrary_bytes_end_in_bytes_or_in_our_own_error(raw: bytes, name: str) -> None:
    with contextlib.suppress(ProviderError):
        assert isinstance(decompress_body(raw, name), bytes)
