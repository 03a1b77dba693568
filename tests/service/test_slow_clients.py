"""Clients that do not finish their requests are timed out, and leave room for those that do."""

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.support.served_gateway import ServedGateway, raw_upstream, serve_gateway

from holdfast.service.http import uvicorn_protocol

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


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"", b"head"),
        (b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"head"),
        (b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n{", b"body"),
    ],
)
def test_a_request_that_stops_arriving_is_timed_out(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch, sent: bytes, part: bytes
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "HEAD_SECONDS_MAX", 0.2)
    monkeypatch.setattr(uvicorn_protocol, "BODY_IDLE_SECONDS_MAX", 0.2)
    with socket.create_connection(gateway.address) as connection:
        connection.sendall(sent)
        answered = read_all(connection)
    assert answered.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"the request " + part in answered


def test_a_body_that_keeps_arriving_is_not_timed_out(gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_protocol, "BODY_IDLE_SECONDS_MAX", 0.3)
    with socket.create_connection(gateway.address) as connection:
        connection.sendall(b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(0.1)
            connection.sendall(b" ")
        connection.settimeout(5)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


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
