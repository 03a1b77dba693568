"""Clients that do not finish their requests are timed out, and leave room for those that do."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from tests.support.served_gateway import ServedGateway, raw_upstream, serve_gateway
from websockets.asyncio.client import connect

from holdfast.gateway.http.client_addresses import TrustedProxies
from holdfast.service.auth.keys import make_key
from holdfast.service.http import uvicorn_protocol
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

REPLY = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
def gateway() -> Iterator[ServedGateway]:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as served:
        upstream.parts = (REPLY,)
        yield served


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(5)
    received = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(65_536):
            received += more
    return received


PROVIDER_PATHS = {
    "/anthropic/v1/messages": ("type", "message"),
    "/openai/v1/chat/completions": ("message", "type", "param", "code"),
    "/gemini/v1beta/models/gemini-3-pro:generateContent": ("code", "message", "status"),
}
"""With the fields of the provider's errors."""


@pytest.mark.parametrize("path", PROVIDER_PATHS)
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_request_that_stops_arriving_is_timed_out_in_the_providers_format(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch, part: str, path: str
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "HEAD_SECONDS_MAX", 0.2)
    monkeypatch.setattr(uvicorn_protocol, "BODY_SECONDS", 0.2)
    end = "" if part == "head" else "content-length: 9\r\n\r\n{"
    with socket.create_connection(gateway.address) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{end}".encode())
        answered = read_all(connection)
    assert answered.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    error = json.loads(answered.partition(b"\r\n\r\n")[2])["error"]
    assert f"the request {part} did not arrive in time" in error["message"]
    assert tuple(error) == PROVIDER_PATHS[path]


def test_a_connection_on_which_nothing_is_sent_is_timed_out(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "HEAD_SECONDS_MAX", 0.2)
    with socket.create_connection(gateway.address) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.parametrize(("piece_bytes", "status"), [(100, 200), (1, 408)])
def test_a_body_may_arrive_slowly_but_not_drop_by_drop(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, status: int
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "BODY_SECONDS", 0.3)
    length = 8 * piece_bytes
    head = f"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n"
    with socket.create_connection(gateway.address) as connection:
        connection.sendall(head.encode())
        # The drops never pause for as long as 0.3 s.
        with suppress(OSError):
            for _ in range(8):
                time.sleep(0.1)
                connection.sendall(b" " * piece_bytes)
        connection.settimeout(5)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 %d" % status)


def test_half_sent_heads_make_way_for_requests_that_are_complete(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "WAITING_CONNECTIONS_MAX", 20)
    client = http.client.HTTPConnection(*gateway.address, timeout=5)
    waiting = []
    for _ in range(100):
        waiting.append(socket.create_connection(gateway.address))
        waiting[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    client.request("GET", "/healthz")
    assert client.getresponse().read()
    assert [read_all(connection) for connection in waiting[:70]] == [b""] * 70
    client.close()
    for connection in waiting:
        connection.close()


@contextmanager
def held_connections(gateway: ServedGateway, count: int, *, forwarded: str | None = None) -> Iterator[None]:
    """Connections that have sent a request, and whose response is complete."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(gateway.address, timeout=5))
            proxied = f"x-forwarded-for: {forwarded}\r\n" if forwarded else ""
            connection.sendall(f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n{proxied}\r\n".encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        yield


def ask(gateway: ServedGateway, path: str = "/anthropic/v1/messages", **headers: str) -> httpx.Response:
    sent = {"x-api-key": "sk-own", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if path == "/healthz":
        return httpx.get(f"{gateway.url}{path}", headers=sent)
    return httpx.post(f"{gateway.url}{path}", json={}, headers=sent)


def make_gateway_key(gateway: ServedGateway) -> str:
    made = make_key("gateway", at=0.0, random_bytes=lambda size: b"k" * size)
    gateway.service.records.add_key(made.row)
    return made.key


@pytest.mark.parametrize("path", PROVIDER_PATHS)
def test_connections_of_an_address_are_limited_and_refused_in_the_providers_format(
    gateway: ServedGateway, path: str
) -> None:
    gateway.service.connections.per_address_max = 5
    with held_connections(gateway, 5):
        refused = ask(gateway, path)
    assert (refused.status_code, refused.headers["connection"], refused.headers["retry-after"]) == (429, "close", "1")
    error = refused.json()["error"]
    assert tuple(error) == PROVIDER_PATHS[path]
    assert "more than 5 connections" in error["message"]
    deadline = time.monotonic() + 5
    while ask(gateway, path).status_code != 200:
        assert time.monotonic() < deadline
    assert gateway.service.connections.refused_count >= 1


def test_health_checks_and_keys_are_served_beyond_the_limit_of_an_address(gateway: ServedGateway) -> None:
    key = make_gateway_key(gateway)
    gateway.service.connections.per_address_max = 5
    with held_connections(gateway, 5):
        assert ask(gateway, "/healthz").status_code == 200
        assert ask(gateway, x_holdfast_key=key).status_code == 200
        assert ask(gateway).status_code == 429
        # A key that is none is answered, and does not hold the connection.
        guessed = ask(gateway, x_holdfast_key=f"hf_{'0' * 16}_{'0' * 64}")
        assert (guessed.status_code, guessed.headers["connection"]) == (401, "close")


def test_some_requests_are_reserved_for_health_checks_and_keys() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url, requests_max=0) as gateway:
        key = make_gateway_key(gateway)
        upstream.parts = (REPLY,)
        refused = ask(gateway, "/openai/v1/responses")
        assert refused.status_code == 503
        assert tuple(refused.json()["error"]) == PROVIDER_PATHS["/openai/v1/chat/completions"]
        assert ask(gateway, "/healthz").status_code == 200
        assert ask(gateway, "/openai/v1/responses", x_holdfast_key=key).status_code == 200


def test_some_descriptors_are_reserved_for_health_checks_and_keys(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_gateway_key(gateway)
    monkeypatch.setattr("holdfast.service.app.get_descriptors_max", lambda: 8)
    with held_connections(gateway, 6):
        assert [ask(gateway).status_code, ask(gateway, x_holdfast_key=key).status_code] == [503, 200]
        assert ask(gateway, "/healthz").status_code == 200


def test_the_forwarded_address_counts_only_behind_a_trusted_proxy(gateway: ServedGateway) -> None:
    connections = gateway.service.connections
    connections.per_address_max = 5
    with held_connections(gateway, 5, forwarded="203.0.113.7"):
        # No proxy is trusted: whatever the header says, it is this address that has six.
        assert ask(gateway, x_forwarded_for="203.0.113.8").status_code == 429
    connections.proxies = TrustedProxies(("127.0.0.0/8", "10.0.0.1"))
    # Idle connections of a proxy do not count.
    with held_connections(gateway, 9, forwarded="203.0.113.7, 10.0.0.1"):
        assert ask(gateway, x_forwarded_for="203.0.113.7").status_code == 200
        # Requests in progress belong to the client that the proxy names.
        for _ in range(6):
            connections.add("203.0.113.7")
        assert ask(gateway, x_forwarded_for="203.0.113.7").status_code == 429
        assert ask(gateway, x_forwarded_for="203.0.113.8").status_code == 200


def test_wrong_keys_count_for_the_address_that_a_trusted_proxy_names(gateway: ServedGateway) -> None:
    gateway.service.connections.proxies = TrustedProxies(("127.0.0.1",))
    key = make_gateway_key(gateway)
    for number in range(21):
        ask(gateway, x_holdfast_key=f"hf_{number:016x}_{number:064x}", x_forwarded_for="203.0.113.7")
    assert ask(gateway, x_holdfast_key=key, x_forwarded_for="203.0.113.7").status_code == 429
    assert ask(gateway, x_holdfast_key=key, x_forwarded_for="203.0.113.8").status_code == 200


async def test_a_websocket_counts_for_its_address_until_it_ends() -> None:
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        address = gateway.url.replace("http", "ws") + "/openai/v1/responses"
        async with connect(address, additional_headers={"authorization": "Bearer sk-own"}):
            assert gateway.service.connections.counts == {"127.0.0.1": 1}
        deadline = time.monotonic() + 5
        while gateway.service.connections.counts or gateway.service.connections.open_count:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("198.51.100.1", "203.0.113.7", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "192.0.2.66, 203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "203.0.113.7, 10.9.9.9", "203.0.113.7"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "[2001:db8::1]:80", "2001:db8::/64"),
        ("2001:db8::1", "", "2001:db8::/64"),
        ("::ffff:10.0.0.1", "203.0.113.7", "203.0.113.7"),
    ],
)
def test_client_address_is_the_last_one_that_no_trusted_proxy_has(peer: str, forwarded: str, address: str) -> None:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    assert TrustedProxies(("10.0.0.0/8",)).find_address(peer, headers) == address
