"""Requests and replies pass unchanged: over generated bodies, chunkings, headers and interruptions, on real sockets."""

import gzip
import json
import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.served_gateway import (
    TIMEOUT_SECONDS,
    RawUpstream,
    ServedGateway,
    headers_in,
    raw_upstream,
    read_message,
    serve_gateway,
)

PATH = "/anthropic/v1/messages"
# 120 each for every check, 6,000 in the deep run.
many = settings(
    max_examples=6 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

names = st.from_regex(r"x-[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(lambda name: not name.startswith("x-holdfast-"))
values = st.from_regex(r"[!-~]([ -~]{0,60}[!-~])?", fullmatch=True)
headers = st.lists(st.tuples(names, values), max_size=6)
bodies = st.one_of(st.binary(max_size=3_000), st.binary(max_size=300).map(gzip.compress), st.just(b"{}"))


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as raw:
        yield raw


@pytest.fixture(scope="module")
def gateway(upstream: RawUpstream) -> Iterator[ServedGateway]:
    with serve_gateway(upstream.url) as served:
        yield served


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut_at % (len(body) + 1) for cut_at in cuts} | {0, len(body)})
    return [body[start:end] for start, end in pairwise(places)]


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


def ask(
    gateway: ServedGateway, parts: list[bytes], header_list: list[tuple[str, str]], *, has_length: bool
) -> socket.socket:
    """Send a request with its body in these parts, with a content length or chunked."""
    connection = socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS)
    lines = [f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in header_list)]
    lines.append(f"Content-Length: {sum(map(len, parts))}" if has_length else "Transfer-Encoding: chunked")
    connection.sendall("\r\n".join((*lines, "", "")).encode())
    for part in parts:
        if part:
            connection.sendall(part if has_length else b"%x\r\n%s\r\n" % (len(part), part))
    if not has_length:
        connection.sendall(b"0\r\n\r\n")
    return connection


def header_pairs(head: bytes) -> list[tuple[str, str]]:
    pairs = (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:])
    return [(name.lower(), value) for name, _, value in pairs if name.lower().startswith("x-")]


@many
@given(bodies, st.lists(st.integers(0, 10_000), max_size=5), headers, st.booleans())
def test_a_request_reaches_the_upstream_unchanged(
    upstream: RawUpstream,
    gateway: ServedGateway,
    body: bytes,
    cuts: list[int],
    header_list: list[tuple[str, str]],
    has_length: bool,
) -> None:
    upstream.parts = (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",)
    with ask(gateway, split(body, cuts), header_list, has_length=has_length) as connection:
        read_message(connection)
    assert upstream.bodies[-1] == body
    head = upstream.heads[-1]
    assert head.startswith(b"POST /v1/messages HTTP/1.1\r\n")
    assert header_pairs(head) == header_list
    assert headers_in(head)[b"host"] == upstream.url.removeprefix("http://").encode()
    assert (b"content-length" in headers_in(head)) == has_length


@many
@given(
    bodies,
    st.lists(st.integers(0, 10_000), max_size=5),
    headers,
    st.sampled_from(["length", "chunks", "until it closes"]),
    st.sampled_from([200, 400, 404, 429, 500, 529]),
)
def test_a_reply_reaches_the_client_unchanged(
    upstream: RawUpstream,
    gateway: ServedGateway,
    body: bytes,
    cuts: list[int],
    header_list: list[tuple[str, str]],
    framing: str,
    status: int,
) -> None:
    parts = split(body, cuts)
    framed = {"length": f"content-length: {len(body)}\r\n", "chunks": "transfer-encoding: chunked\r\n"}.get(framing, "")
    lines = "".join(f"{name}: {value}\r\n" for name, value in header_list)
    head = f"HTTP/1.1 {status} As it is\r\nconnection: close\r\ncontent-encoding: gzip\r\n{lines}{framed}\r\n".encode()
    upstream.parts = (head, *([chunked(parts)] if framing == "chunks" else parts))
    with ask(gateway, [b"{}"], [], has_length=True) as connection:
        received, body_received = read_message(connection)
    assert body_received == body
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert header_pairs(received) == header_list
    assert headers_in(received)[b"content-encoding"] == b"gzip"


STREAM = b"".join(
    b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, "n": place}).encode())
    for place, kind in enumerate(("message_start", "content_block_delta", "message_stop"))
)


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_stream_cut_off_anywhere_is_cut_off_there_for_the_client(
    upstream: RawUpstream, gateway: ServedGateway, framing: str
) -> None:
    """The bytes before the cut arrive, nothing else does, and no end is invented."""
    if framing == "chunks":
        head, body = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunked([STREAM[:40], STREAM[40:]])
    else:
        head, body = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(STREAM), STREAM
    for cut_at in range(len(body)):
        upstream.parts = (head, body[:cut_at])
        with ask(gateway, [b"{}"], [], has_length=True) as connection:
            raw = b"".join(iter(lambda: connection.recv(65536), b""))
        received_head, _, received = raw.partition(b"\r\n\r\n")
        assert received_head.startswith(b"HTTP/1.1 200")
        assert not received.endswith(b"0\r\n\r\n") or framing == "length"
        plain = received if framing == "length" else _payload(received)
        expected = body[:cut_at] if framing == "length" else _payload(body[:cut_at])
        assert plain == expected


def _payload(received: bytes) -> bytes:
    """The payload of a chunked body, as far as it goes."""
    plain = b""
    while received:
        line, payload, rest = received.partition(b"\r\n")
        size = int(line, 16) if payload and line else 0
        plain += rest[:size]
        received = rest[size + 2 :]
    return plain


def test_a_response_head_cut_off_anywhere_is_reported_as_no_response(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n"
    for cut_at in range(len(head)):
        upstream.parts = (head[:cut_at],)
        with ask(gateway, [b"{}"], [], has_length=True) as connection:
            received, body = read_message(connection)
        assert received.startswith(b"HTTP/1.1 502")
        assert headers_in(received)[b"x-holdfast-gateway"] == b"refused"
        assert json.loads(body)["type"] == "error"
