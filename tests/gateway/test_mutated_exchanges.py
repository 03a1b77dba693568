"""Whatever bytes arrive, the gateway answers or closes in time, stays up, and counts what was answered.

`make deep` sends 10,000. Heads, lengths, chunks, paths and headers are mutated as well as bodies.
"""

import json
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import httpx
import pytest
from tests.support.fuzzed_bodies import iterate_bodies
from tests.support.served_gateway import RawUpstream, read_message, serve_gateway

from holdfast.engine import guard
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.service.http import uvicorn_protocol

COUNT = int(os.environ.get("HOLDFAST_MUTATED_EXCHANGES", "400"))
BATCH = 200
CLIENTS = 16
ANSWER_SECONDS_MAX = 20.0
HANGS = b"hangs"
REPLY = json.dumps({"usage": {"input_tokens": 10, "output_tokens": 2, "prompt_tokens": 10, "completion_tokens": 2}})


class MarkingUpstream(RawUpstream):
    """Answers every request that arrives whole, and says in a header which method it had."""

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(ANSWER_SECONDS_MAX)
            head, _ = read_message(connection)
            self.heads.append(head)
            method = head.partition(b" ")[0]
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-upstream: %s\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%s" % (method, len(REPLY), REPLY.encode())
            )


class RawRequest:
    """A request in parts, so that each can be mutated; `framing` is what announces the body's length."""

    def __init__(self, path: str, body: bytes) -> None:
        self.line = b"POST %s HTTP/1.1" % path.encode()
        self.headers = [b"host: 127.0.0.1", b"x-api-key: any", b"content-type: application/json"]
        self.framing = [b"content-length: %d" % len(body)]
        self.body = body
        self.line_end = b"\r\n"

    def join(self) -> bytes:
        return self.line_end.join([self.line, *self.headers, *self.framing, b"", b""]) + self.body


def _encode_chunks(body: bytes, chance: random.Random, *, size_format: bytes = b"%x") -> bytes:
    size = chance.randint(1, max(1, len(body)))
    parts = [body[start : start + size] for start in range(0, len(body), size)][:50]
    return b"".join(size_format % len(part) + b"\r\n" + part + b"\r\n" for part in parts) + b"0\r\n\r\n"


def mutate_line(request: RawRequest, chance: random.Random) -> None:
    methods = [b"GET", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"CONNECT", b"TRACE", b"PRI", b"post", b"", b"P\x00ST"]
    method, _, rest = request.line.partition(b" ")
    path, _, version = rest.rpartition(b" ")
    match chance.randrange(4):
        case 0:
            method = chance.choice(methods)
        case 1:
            version = chance.choice([b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"", b"http/1.1", b"HTTP/1.1 "])
        case 2:
            path = chance.choice(
                [b"*", b"", b"//", b"http://evil.example/x", b"/anthropic/" + b"a" * 70_000, b"/\xff\xfe"]
            )
        case _:
            path = path.replace(
                b"/", chance.choice([b"//", b"/%2e%2e/", b"/../", b"%2f", b"/\\", b"/;x/", b"/%00/", b"/?a=/"]), 2
            )
    request.line = b" ".join((method, path, version))


def mutate_headers(request: RawRequest, chance: random.Random) -> None:
    extra = [
        b"host: other.example",
        b"host: 127.0.0.1",
        b": empty",
        b"no colon",
        b" folded: value",
        b"x-long: " + b"v" * chance.randrange(70_000),
        b"x-null: a\x00b",
        b"x-high: \xff\xfe",
        b"connection: close, content-length, x-api-key",
        b"connection: upgrade\r\nupgrade: h2c",
        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAA\r\nsec-websocket-version: 13",
        b"expect: 100-continue",
        b"content-encoding: gzip",
        b"content-type: multipart/form-data; boundary=",
        b"x-forwarded-for: " + b"1.2.3.4, " * 500,
        b"x-holdfast-key: \xe9" + b"k" * 300,
        b"authorization: Bearer hf_" + b"0" * 16,
        b"origin: https://evil.example",
    ]
    request.headers.insert(chance.randrange(len(request.headers) + 1), chance.choice(extra))
    if chance.random() < 0.2:
        del request.headers[chance.randrange(len(request.headers))]


def mutate_framing(request: RawRequest, chance: random.Random) -> None:
    length = len(request.body)
    chunked = b"transfer-encoding: chunked"
    match chance.randrange(7):
        case 0:
            wrong = chance.choice(
                [b"-1", b"+%d" % length, b"0x10", b"9" * 30, b"", b"%d" % (length + 5), b"1", b"%d, 3" % length]
            )
            request.framing = [b"content-length: " + wrong]
        case 1:
            request.framing.append(b"content-length: %d" % (length + chance.randint(0, 1)))
        case 2:
            request.framing, request.body = [chunked], _encode_chunks(request.body, chance)
        case 3:
            request.framing, request.body = [*request.framing, chunked], _encode_chunks(request.body, chance)
        case 4:
            broken = chance.choice([b"%x;ext=1", b"0x%x", b"-%x", b"%x ", b"g%x", b"00000000000000000%x"])
            request.framing, request.body = [chunked], _encode_chunks(request.body, chance, size_format=broken)
        case 5:
            request.framing = [
                chance.choice(
                    [
                        b"transfer-encoding: gzip, chunked",
                        b"transfer-encoding: identity",
                        b"transfer-encoding:\x0bchunked",
                    ]
                )
            ]
        case _:
            request.framing = []


def mutate_bytes(raw: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(raw))
    match chance.randrange(5):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
        case 2:
            return raw[:at] + chance.randbytes(chance.randint(1, 40)) + raw[at:]
        case 3:
            return raw + raw
        case _:
            return chance.randbytes(chance.randint(1, 400)) + raw


MUTATIONS: tuple[Callable[[RawRequest, random.Random], None], ...] = (mutate_line, mutate_headers, mutate_framing)


def iterate_exchanges(*, seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for path, body in iterate_bodies(seed=seed, count=count):
        request = RawRequest(path, body)
        for mutate in chance.sample(MUTATIONS, chance.randint(0, 2)):
            mutate(request, chance)
        if chance.random() < 0.05:
            request.line_end = b"\n"
        raw = request.join()
        yield mutate_bytes(raw, chance) if chance.random() < 0.3 else raw


def exchange(address: tuple[str, int], raw: bytes) -> bytes:
    """What is answered until the gateway closes or waits for more; HANGS if it neither answers nor closes."""
    received = b""
    with closing(socket.create_connection(address, timeout=ANSWER_SECONDS_MAX)) as connection:
        with suppress(ConnectionError):
            connection.sendall(raw)
        try:
            while more := connection.recv(65_536):
                received += more
                # Not to wait for the end of a connection that is kept open.
                connection.settimeout(1.0 if received.startswith(b"HTTP/1.1") else ANSWER_SECONDS_MAX)
                if _is_one_answer(received, raw):
                    break
        except ConnectionError:
            return received
        except TimeoutError:
            return received or HANGS
        return received


def _is_one_answer(received: bytes, raw: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    is_pipelined = raw.count(b"HTTP/1.1") > 1
    return bool(end) and length is not None and len(body) >= length and not is_pipelined


@pytest.mark.timeout(max(120, COUNT))
def test_no_mutated_exchange_crashes_hangs_or_is_answered_uncounted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(uvicorn_protocol, "HEAD_SECONDS_MAX", 0.5)
    monkeypatch.setattr(uvicorn_protocol, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(guard, "WARNINGS_MAX", COUNT)
    raws = list(iterate_exchanges(seed=29, count=COUNT))
    upstream, received = MarkingUpstream(), list[bytes]()

    def ask(raw: bytes) -> bytes:
        return exchange(gateway.address, raw)

    with closing(upstream), serve_gateway(upstream.url) as gateway, ThreadPoolExecutor(CLIENTS) as pool:
        for start in range(0, COUNT, BATCH):
            received += pool.map(ask, raws[start : start + BATCH])
            gateway.recorded_sessions()
            assert httpx.get(f"{gateway.url}/healthz", timeout=ANSWER_SECONDS_MAX).status_code == 200
        outcomes = gateway.store.cost_queries().outcomes(LedgerScope(simulated=True))
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while gateway.service.connections.open_count:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert [raws[number][:300] for number, answer in enumerate(received) if answer == HANGS] == []
    assert all(answer.startswith(b"HTTP/1.1 ") or not answer for answer in received)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    own_errors = ("not recorded", "could not be analyzed")
    assert [text for text in caplog.messages if any(error in text for error in own_errors)] == []
    answered = sum(answer.count(b"x-upstream: POST\r\n") for answer in received)
    recorded = sum(row.calls for row in outcomes)
    assert COUNT // 4 < answered <= recorded <= len(upstream.heads)
