"""How the gateway forwards: nothing waits, nothing is held back, nobody is left hanging."""

import json
import socket
import threading
from collections.abc import Iterator

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

from holdfast.gateway.exchange import Exchange
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

KEY = "x-api-key: any\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CLOSING = OK.replace(b"content", b"connection: close\r\ncontent")
ASKED = json.dumps(
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


def connected(gateway: ServedGateway) -> socket.socket:
    return socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS)


def post(body: bytes = b"{}", path: str = "/anthropic/v1/messages", more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def received_until(connection: socket.socket, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        more = connection.recv(65536)
        assert more, received
        received += more
    return received


def test_what_has_come_of_a_reply_is_passed_on_before_the_rest_is_there(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    go_on = threading.Event()
    upstream.parts = (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        go_on,
        b"4\r\nlast\r\n0\r\n\r\n",
    )
    with connected(gateway) as connection:
        connection.sendall(post())
        assert b"first" in received_until(connection, b"first")
        go_on.set()
        assert received_until(connection, b"0\r\n\r\n").endswith(b"4\r\nlast\r\n0\r\n\r\n")


def test_a_head_is_passed_on_before_its_body_is_there_and_with_it_where_it_is(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    go_on = threading.Event()
    upstream.parts = (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n", go_on, b"HTTP/")
    with connected(gateway) as connection:
        connection.sendall(post())
        assert received_until(connection, b"\r\n\r\n").endswith(b"\r\n\r\n")
        go_on.set()
        assert received_until(connection, b"HTTP/") == b"HTTP/"
    upstream.parts = (CLOSING,)
    with connected(gateway) as connection:
        for _ in range(20):
            connection.sendall(post())
            assert connection.recv(65536).endswith(b"\r\n\r\n{}")


def test_what_has_come_of_a_request_is_passed_on_before_the_rest_is_there(gateway: ServedGateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as running, connected(running) as connection:
            listening.settimeout(TIMEOUT_SECONDS)
            connection.sendall(post(b"x" * 10)[:-5])
            taken, _ = listening.accept()
            with taken:
                taken.settimeout(TIMEOUT_SECONDS)
                assert received_until(taken, b"\r\n\r\nxxxxx").endswith(b"\r\n\r\nxxxxx")
                connection.sendall(b"yyyyy")
                received_until(taken, b"yyyyy")
                taken.sendall(OK)
                assert read_message(connection)[1] == b"{}"


def test_a_client_that_leaves_cancels_what_it_asked_for(upstream: RawUpstream, gateway: ServedGateway) -> None:
    never = threading.Event()
    upstream.parts = (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n", never)
    with connected(gateway) as connection:
        connection.sendall(post(ASKED))
        received_until(connection, b"first")
    assert upstream.left.wait(TIMEOUT_SECONDS)
    (session,) = gateway.recorded_sessions()
    assert "llm.call_failed" in str([event.payload for event in gateway.store.read(session)][-1].__struct_config__.tag)


def test_a_client_that_leaves_before_the_reply_begins_cancels_it_too(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    upstream.parts = (threading.Event(),)
    connection = connected(gateway)
    connection.sendall(post())
    while not upstream.heads:
        pass
    connection.close()
    assert upstream.left.wait(TIMEOUT_SECONDS)


def test_a_large_body_goes_through_both_ways_and_is_not_held(upstream: RawUpstream, gateway: ServedGateway) -> None:
    large = bytes(range(256)) * 4096 * 40
    upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(large), large)
    with connected(gateway) as connection:
        sender = threading.Thread(target=connection.sendall, args=(post(large),))
        sender.start()
        _, body = read_message(connection)
        sender.join()
    assert upstream.bodies == [large]
    assert body == large
    assert gateway.observer.dropped_count == 0


def test_a_slow_client_gets_every_byte(upstream: RawUpstream, gateway: ServedGateway) -> None:
    large = bytes(range(256)) * 4096
    upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(large), large)
    with connected(gateway) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        connection.sendall(post())
        received = b""
        while not received.endswith(large[-256:]) or len(received) < len(large):
            received += connection.recv(8192)
    assert received.partition(b"\r\n\r\n")[2] == large


def test_ten_thousand_bytes_of_headers_arrive(upstream: RawUpstream, gateway: ServedGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(post(more=f"x-long: {'a' * 10_000}\r\n"))
        read_message(connection)
    assert headers_in(upstream.heads[0])[b"x-long"] == b"a" * 10_000


def test_headers_of_one_connection_and_our_own_stay_behind(upstream: RawUpstream, gateway: ServedGateway) -> None:
    upstream.parts = (
        b"HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: 5\r\ndate: then\r\n"
        b"x-kept: 1\r\ncontent-length: 0\r\n\r\n",
    )
    more = "connection: keep-alive, x-mine\r\nx-mine: 1\r\nte: trailers\r\nx-holdfast-session: s\r\nx-kept: 2\r\n"
    with connected(gateway) as connection:
        connection.sendall(post(more=more))
        head, _ = read_message(connection)
    sent = headers_in(upstream.heads[0])
    assert sent.keys() == {b"host", b"x-kept", b"content-length"}
    assert {name: value for name, value in headers_in(head).items() if name != b"connection"} == {
        b"date": b"then",
        b"x-kept": b"1",
        b"content-length": b"0",
    }


def test_a_length_that_is_called_one_connections_own_still_ends_the_body(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    within = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    with connected(gateway) as connection:
        connection.sendall(post(within, more="connection: keep-alive, content-length\r\n"))
        read_message(connection)
    assert headers_in(upstream.heads[0])[b"content-length"] == str(len(within)).encode()


def test_the_key_of_a_page_stays_here_and_other_cookies_go_on(upstream: RawUpstream, gateway: ServedGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(post(more="cookie: a=1; holdfast_key=hf_secret; b=holdfast_key\r\n"))
        read_message(connection)
        connection.sendall(post(more="cookie: holdfast_key=hf_secret\r\n"))
        read_message(connection)
    mixed, alone = map(headers_in, upstream.heads)
    assert mixed[b"cookie"] == b"a=1; b=holdfast_key"
    assert b"cookie" not in alone


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"


@pytest.mark.parametrize("steps", [10_000, 40, 1])
def test_a_client_that_offers_another_protocol_is_answered_in_this_one(
    upstream: RawUpstream, gateway: ServedGateway, steps: int
) -> None:
    offered = post(b"x" * 60, more=UPGRADE)
    with connected(gateway) as connection:
        for request in (offered, post(b"{}"), offered):
            for start in range(0, len(request), steps):
                connection.sendall(request[start : start + steps])
            assert read_message(connection)[1] == b"{}"
    assert upstream.bodies == [b"x" * 60, b"{}", b"x" * 60]
    assert b"upgrade" not in b"".join(upstream.heads).lower()


def test_another_protocol_that_is_asked_for_in_advance_or_without_a_name_is_refused(gateway: ServedGateway) -> None:
    for asked in (post() + post(more=UPGRADE), b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with connected(gateway) as connection:
            connection.sendall(asked)
            assert b"protocol upgrades are not supported" in received_until(connection, b"upgrades")


def test_one_connection_carries_requests_one_after_another_and_in_advance() -> None:
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway, connected(gateway) as connection:
        bodies = [ASKED.replace(b"Hello.", b"Hello %d." % place) for place in range(5)]
        connection.sendall(post(bodies[0], more=KEY))
        _, first = read_message(connection)
        connection.sendall(b"".join(post(body, more=KEY) for body in bodies[1:]))
        received = received_until(connection, b"Hello 4")
    assert b"Hello 0" in first
    places = [received.index(b"Hello %d" % place) for place in range(1, 5)]
    assert places == sorted(places)


def test_an_answer_that_comes_before_the_request_is_whole_is_passed_on(gateway: ServedGateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as running, connected(running) as connection:
            listening.settimeout(TIMEOUT_SECONDS)
            connection.sendall(post(b"x" * 10)[:-5])
            taken, _ = listening.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 413 Too large\r\ncontent-length: 3\r\n\r\nbig")
                head, body = read_message(connection)
    assert head.startswith(b"HTTP/1.1 413")
    assert body == b"big"


def test_interim_answers_are_passed_over(upstream: RawUpstream, gateway: ServedGateway) -> None:
    upstream.parts = (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", CLOSING)
    with connected(gateway) as connection:
        connection.sendall(post())
        head, body = read_message(connection)
    assert (head[:12], body) == (b"HTTP/1.1 200", b"{}")


def test_what_an_idle_connection_says_is_nobodys_answer() -> None:
    """An upstream that tells a connection at rest that it waited too long must not answer the next request by that."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_SECONDS)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as gateway, connected(gateway) as connection:
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


def test_a_connection_is_used_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_SECONDS)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_gateway(url) as gateway, connected(gateway) as connection:
            connection.sendall(post())
            taken, _ = listening.accept()
            with taken:
                for place in range(3):
                    if place:
                        connection.sendall(post())
                    assert read_message(taken)[1] == b"{}"
                    taken.sendall(OK)
                    assert read_message(connection)[1] == b"{}"


def test_everything_below_a_mount_is_forwarded_and_nothing_else_at_the_root(
    upstream: RawUpstream, gateway: ServedGateway
) -> None:
    for path in ("/openai/v1/models?limit=3", "/anthropic/a/b%2Fc", "/v1beta/models/m:countTokens"):
        with connected(gateway) as connection:
            connection.sendall(post(path=path))
            read_message(connection)
    wanted = [head.split(b" ")[1] for head in upstream.heads]
    assert wanted == [b"/v1/models?limit=3", b"/a/b%2Fc", b"/v1beta/models/m:countTokens"]
    for path in ("/v1/models", "/v1/messages/", "/v1/agents", "/anthropicx/v1/messages"):
        with connected(gateway) as connection:
            connection.sendall(post(path=path))
            head, _ = read_message(connection)
        assert head.startswith(b"HTTP/1.1 404")
    assert len(upstream.heads) == 3


def test_pages_of_another_origin_and_bent_names_get_nowhere(upstream: RawUpstream, gateway: ServedGateway) -> None:
    for more, status in (("origin: https://evil.example\r\n", b"403"), ("host: evil.example\r\n", b"400")):
        with connected(gateway) as connection:
            connection.sendall(post(more=more))
            head, _ = read_message(connection)
        assert head.startswith(b"HTTP/1.1 " + status)
    assert upstream.heads == []


class Failing:
    """Fails at whatever it is told."""

    def on_request(self, exchange: Exchange) -> None:
        raise RuntimeError

    def on_end(self, exchange: Exchange) -> None:
        raise RuntimeError


def test_whatever_of_ours_fails_the_call_goes_on(upstream: RawUpstream) -> None:
    def failing(observer: GatewayRecorder) -> Failing:
        return Failing()

    with serve_gateway(upstream.url, watcher=failing) as gateway, connected(gateway) as connection:
        for _ in range(2):
            connection.sendall(post(ASKED))
            assert read_message(connection)[1] == b"{}"
    assert upstream.bodies == [ASKED, ASKED]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 1}', b"\xff" * 100, b'{"a":' * 5000])
def test_what_cannot_be_read_is_forwarded_all_the_same(
    upstream: RawUpstream, gateway: ServedGateway, body: bytes
) -> None:
    with connected(gateway) as connection:
        connection.sendall(post(body))
        assert read_message(connection)[1] == b"{}"
    assert upstream.bodies == [body]
    assert gateway.recorded_sessions() == ()


def test_an_upstream_that_is_not_there_is_told_in_the_providers_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with serve_gateway(url) as gateway:
        for path, words in (("/anthropic/v1/messages", "api_error"), ("/openai/v1/responses", "server_error")):
            with connected(gateway) as connection:
                connection.sendall(post(path=path))
                head, body = read_message(connection)
            assert head.startswith(b"HTTP/1.1 502")
            assert json.loads(body)["error"]["type"] == words
