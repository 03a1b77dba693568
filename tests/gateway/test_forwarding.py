"""Forwarding: nothing is buffered or delayed, and no connection is left hanging."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.support.served_gateway import (
    TIMEOUT_SECONDS,
    RawUpstream,
    ServedGateway,
    headers_in,
    raw_upstream,
    read_message,
    serve_gateway,
)

from holdfast.gateway.exchange import Exchange, ExchangeWatcher
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

KEY = "x-api-key: any\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CLOSING = OK.replace(b"content", b"connection: close\r\ncontent")
REQUEST = json.dumps(
    {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}
).encode()


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as raw:
        raw.parts = (CLOSING,)
        yield raw


@pytest.fixture
def gateway(upstream: RawUpstream) -> Iterator[ServedGateway]:
    with serve_gateway(upstream.url) as running:
        yield running


def connect(gateway: ServedGateway) -> socket.socket:
    return socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS)


def post(body: bytes = b"{}", path: str = "/anthropic/v1/messages", more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def receive_until(connection: socket.socket, expected: bytes) -> bytes:
    received = b""
    while expected not in received:
        more = connection.recv(65536)
        assert more, received
        received += more
    return received


def test_a_reply_is_forwarded_as_it_arrives(upstream: RawUpstream, gateway: ServedGateway) -> None:
    go_on = threading.Event()
    upstream.parts = (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        go_on,
        b"4\r\nlast\r\n0\r\n\r\n",
    )
    with connect(gateway) as connection:
        connection.sendall(post())
        assert b"first" in receive_until(connection, b"first")
        go_on.set()
        assert receive_until(connection, b"0\r\n\r\n").endswith(b"4\r\nlast\r\n0\r\n\r\n")


def test_a_response_head_is_forwarded_at_once_and_together_with_a_body_that_is_ready(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    go_on = threading.Event()
    upstream.parts = (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n", go_on, b"HTTP/")
    with connect(gateway) as connection:
        connection.sendall(post())
        assert receive_until(connection, b"\r\n\r\n").endswith(b"\r\n\r\n")
        go_on.set()
        assert receive_until(connection, b"HTTP/") == b"HTTP/"
    upstream.parts = (CLOSING,)
    with connect(gateway) as connection:
        for _ in range(20):
            connection.sendall(post())
            assert connection.recv(65536).endswith(b"\r\n\r\n{}")


def test_a_request_is_forwarded_as_it_arrives(gateway: ServedGateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as running, connect(running) as connection:
            listening.settimeout(TIMEOUT_SECONDS)
            connection.sendall(post(b"x" * 10)[:-5])
            accepted, _ = listening.accept()
            with accepted:
                accepted.settimeout(TIMEOUT_SECONDS)
                assert receive_until(accepted, b"\r\n\r\nxxxxx").endswith(b"\r\n\r\nxxxxx")
                connection.sendall(b"yyyyy")
                receive_until(accepted, b"yyyyy")
                accepted.sendall(OK)
                assert read_message(connection)[1] == b"{}"


def test_a_client_that_disconnects_cancels_its_request(upstream: RawUpstream, gateway: ServedGateway) -> None:
    never = threading.Event()
    upstream.parts = (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n", never)
    with connect(gateway) as connection:
        connection.sendall(post(REQUEST))
        receive_until(connection, b"first")
    assert upstream.left.wait(TIMEOUT_SECONDS)
    (session,) = gateway.recorded_sessions()
    assert "llm.call_failed" in str([event.payload for event in gateway.store.read(session)][-1].__struct_config__.tag)


def test_a_client_that_disconnects_before_the_reply_cancels_it_too(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    upstream.parts = (threading.Event(),)
    connection = connect(gateway)
    connection.sendall(post())
    while not upstream.heads:
        pass
    connection.close()
    assert upstream.left.wait(TIMEOUT_SECONDS)


def test_a_large_body_is_forwarded_both_ways_without_buffering(upstream: RawUpstream, gateway: ServedGateway) -> None:
    large = bytes(range(256)) * 4096 * 40
    upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(large), large)
    with connect(gateway) as connection:
        sender = threading.Thread(target=connection.sendall, args=(post(large),))
        sender.start()
        _, body = read_message(connection)
        sender.join()
    assert upstream.bodies == [large]
    assert body == large
    assert gateway.observer.queue.dropped_count == 0


def test_a_slow_client_gets_every_byte(upstream: RawUpstream, gateway: ServedGateway) -> None:
    large = bytes(range(256)) * 4096
    upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(large), large)
    with connect(gateway) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        connection.sendall(post())
        received = b""
        while not received.endswith(large[-256:]) or len(received) < len(large):
            received += connection.recv(8192)
    assert received.partition(b"\r\n\r\n")[2] == large


def test_ten_thousand_bytes_of_headers_arrive(upstream: RawUpstream, gateway: ServedGateway) -> None:
    with connect(gateway) as connection:
        connection.sendall(post(more=f"x-long: {'a' * 10_000}\r\n"))
        read_message(connection)
    assert headers_in(upstream.heads[0])[b"x-long"] == b"a" * 10_000


def test_hop_by_hop_headers_and_our_own_are_not_forwarded(upstream: RawUpstream, gateway: ServedGateway) -> None:
    upstream.parts = (
        b"HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: 5\r\ndate: then\r\n"
        b"x-kept: 1\r\ncontent-length: 0\r\n\r\n",
    )
    more = "connection: keep-alive, x-mine\r\nx-mine: 1\r\nte: trailers\r\nx-holdfast-session: s\r\nx-kept: 2\r\n"
    with connect(gateway) as connection:
        connection.sendall(post(more=more))
        head, _ = read_message(connection)
    sent = headers_in(upstream.heads[0])
    assert sent.keys() == {b"host", b"x-kept", b"content-length"}
    assert {name: value for name, value in headers_in(head).items() if name != b"connection"} == {
        b"date": b"then",
        b"x-kept": b"1",
        b"content-length": b"0",
    }


def test_a_content_length_that_is_declared_hop_by_hop_still_ends_the_body(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    within = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    with connect(gateway) as connection:
        connection.sendall(post(within, more="connection: keep-alive, content-length\r\n"))
        read_message(connection)
    assert headers_in(upstream.heads[0])[b"content-length"] == str(len(within)).encode()


def test_the_dashboards_cookie_is_removed_and_other_cookies_are_forwarded(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    with connect(gateway) as connection:
        connection.sendall(post(more="cookie: a=1; holdfast_key=hf_secret; b=holdfast_key\r\n"))
        read_message(connection)
        connection.sendall(post(more="cookie: holdfast_key=hf_secret\r\n"))
        read_message(connection)
    mixed, alone = map(headers_in, upstream.heads)
    assert mixed[b"cookie"] == b"a=1; b=holdfast_key"
    assert b"cookie" not in alone


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"


@pytest.mark.parametrize("steps", [10_000, 40, 1])
def test_a_client_that_offers_another_protocol_is_answered_in_http_1(
    upstream: RawUpstream, gateway: ServedGateway, steps: int
) -> None:
    offered = post(b"x" * 60, more=UPGRADE)
    with connect(gateway) as connection:
        for request in (offered, post(b"{}"), offered):
            for start in range(0, len(request), steps):
                connection.sendall(request[start : start + steps])
            assert read_message(connection)[1] == b"{}"
    assert upstream.bodies == [b"x" * 60, b"{}", b"x" * 60]
    assert b"upgrade" not in b"".join(upstream.heads).lower()


def test_a_pipelined_upgrade_and_a_connect_request_are_refused(gateway: ServedGateway) -> None:
    tunnel = b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n"
    # CONNECT is an upgrade for the parser whether or not it has the header, which is removed only once.
    for request in (post() + post(more=UPGRADE), tunnel + b"\r\n", tunnel + UPGRADE.encode() + b"\r\n"):
        with connect(gateway) as connection:
            connection.sendall(request)
            assert b"protocol upgrades are not supported" in receive_until(connection, b"upgrades")


def test_one_connection_serves_requests_in_sequence_and_pipelined() -> None:
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway, connect(gateway) as connection:
        bodies = [REQUEST.replace(b"Hello.", b"Hello %d." % place) for place in range(5)]
        connection.sendall(post(bodies[0], more=KEY))
        _, first = read_message(connection)
        connection.sendall(b"".join(post(body, more=KEY) for body in bodies[1:]))
        received = receive_until(connection, b"Hello 4")
    assert b"Hello 0" in first
    places = [received.index(b"Hello %d" % place) for place in range(1, 5)]
    assert places == sorted(places)


def test_a_response_before_the_end_of_the_request_is_forwarded(gateway: ServedGateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as running, connect(running) as connection:
            listening.settimeout(TIMEOUT_SECONDS)
            connection.sendall(post(b"x" * 10)[:-5])
            accepted, _ = listening.accept()
            with accepted:
                accepted.sendall(b"HTTP/1.1 413 Too large\r\ncontent-length: 3\r\n\r\nbig")
                head, body = read_message(connection)
    assert head.startswith(b"HTTP/1.1 413")
    assert body == b"big"


def test_interim_responses_are_skipped(upstream: RawUpstream, gateway: ServedGateway) -> None:
    upstream.parts = (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", CLOSING)
    with connect(gateway) as connection:
        connection.sendall(post())
        head, body = read_message(connection)
    assert (head[:12], body) == (b"HTTP/1.1 200", b"{}")


def test_data_on_an_idle_connection_is_not_the_next_response() -> None:
    """An upstream that reports a timeout on an idle connection must not answer the next request with it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_SECONDS)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as gateway, connect(gateway) as connection:
            connection.sendall(post())
            first, _ = listening.accept()
            read_message(first)
            first.sendall(OK)
            read_message(connection)
            first.sendall(b"HTTP/1.1 408 Too late\r\ncontent-length: 0\r\n\r\n")
            assert first.recv(1) == b""
            connection.sendall(post())
            second, _ = listening.accept()
            read_message(second)
            second.sendall(OK)
            head, _ = read_message(connection)
            first.close()
            second.close()
    assert head.startswith(b"HTTP/1.1 200")


def test_a_connection_is_reused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_SECONDS)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as gateway, connect(gateway) as connection:
            connection.sendall(post())
            accepted, _ = listening.accept()
            with accepted:
                for place in range(3):
                    if place:
                        connection.sendall(post())
                    assert read_message(accepted)[1] == b"{}"
                    accepted.sendall(OK)
                    assert read_message(connection)[1] == b"{}"


def test_everything_below_a_mount_is_forwarded_and_nothing_else_at_the_root(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    for path in ("/openai/v1/models?limit=3", "/anthropic/a/b%2Fc", "/v1beta/models/m:countTokens"):
        with connect(gateway) as connection:
            connection.sendall(post(path=path))
            read_message(connection)
    paths = [head.split(b" ")[1] for head in upstream.heads]
    assert paths == [b"/v1/models?limit=3", b"/a/b%2Fc", b"/v1beta/models/m:countTokens"]
    for path in ("/v1/models", "/v1/messages/x", "/v1/agents", "/anthropicx/v1/messages"):
        with connect(gateway) as connection:
            connection.sendall(post(path=path))
            head, _ = read_message(connection)
        assert head.startswith(b"HTTP/1.1 404")
    assert len(upstream.heads) == 3


def test_other_origins_and_forged_host_names_are_refused(upstream: RawUpstream, gateway: ServedGateway) -> None:
    for more, status in (("origin: https://evil.example\r\n", b"403"), ("host: evil.example\r\n", b"400")):
        with connect(gateway) as connection:
            connection.sendall(post(more=more))
            head, _ = read_message(connection)
        assert head.startswith(b"HTTP/1.1 " + status)
    assert upstream.heads == []


class Failing:
    """Fails at every call."""

    def on_request(self, exchange: Exchange) -> None:
        raise RuntimeError

    def on_end(self, exchange: Exchange) -> None:
        raise RuntimeError


def test_a_call_continues_whatever_of_ours_fails(upstream: RawUpstream) -> None:
    def failing(observer: GatewayRecorder) -> Failing:
        return Failing()

    with serve_gateway(upstream.url, watcher=failing) as gateway, connect(gateway) as connection:
        for _ in range(2):
            connection.sendall(post(REQUEST))
            assert read_message(connection)[1] == b"{}"
    assert upstream.bodies == [REQUEST, REQUEST]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 1}', b"\xff" * 100, b'{"a":' * 5000])
def test_an_undecodable_request_is_forwarded_and_recorded(
    upstream: RawUpstream, gateway: ServedGateway, body: bytes
) -> None:
    with connect(gateway) as connection:
        connection.sendall(post(body))
        assert read_message(connection)[1] == b"{}"
    assert upstream.bodies == [body]
    assert len(gateway.recorded_sessions()) == 1


def test_an_unreachable_upstream_is_reported_in_the_providers_format() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with serve_gateway(url) as gateway:
        for path, words in (("/anthropic/v1/messages", "api_error"), ("/openai/v1/responses", "server_error")):
            with connect(gateway) as connection:
                connection.sendall(post(path=path))
                head, body = read_message(connection)
            assert head.startswith(b"HTTP/1.1 502")
            assert json.loads(body)["error"]["type"] == words


def test_the_last_byte_waits_until_the_record_cannot_be_lost(upstream: RawUpstream) -> None:
    durable, ended = threading.Event(), threading.Event()

    class SlowDisk(ExchangeWatcher):
        def on_request(self, exchange: Exchange) -> None:
            pass

        async def on_end(self, exchange: Exchange) -> None:
            ended.set()
            await asyncio.to_thread(durable.wait, TIMEOUT_SECONDS)

    upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"{}")
    with serve_gateway(upstream.url, watcher=lambda recorder: SlowDisk()) as gateway, connect(gateway) as connection:
        connection.sendall(post())
        assert ended.wait(TIMEOUT_SECONDS)
        connection.settimeout(0.2)
        received = b""
        with suppress(TimeoutError):
            while True:
                received += connection.recv(65536)
        assert not received.endswith(b"{}")
        durable.set()
        connection.settimeout(TIMEOUT_SECONDS)
        while not received.endswith(b"{}"):
            received += connection.recv(65536)
