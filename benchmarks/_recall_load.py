"""Clients that recall as fast as they are answered, in one process with raw sockets, so that they cost little.

Standard input has a `LoadPlan`, standard output gets a `LoadResult`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from itertools import count, cycle
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvicorn

PATH = "/v1/agents/a0/recall-instruction"
_LENGTH = b"content-length: "


class LoadPlan(msgspec.Struct, frozen=True):
    """With `numbered` each intent is sent with a number of its own, so that no two are the same."""

    url: str
    key: str
    intents: tuple[str, ...]
    clients: int = 64
    seconds: float = 5.0
    numbered: bool = False


class LoadResult(msgspec.Struct, frozen=True):
    """Latencies in seconds of all recalls; `processor_seconds` is what the clients themselves used."""

    latencies: list[float]
    seconds: float
    processor_seconds: float


class _Client(asyncio.Protocol):
    """Sends the next recall as soon as the last one is answered, until `stop`."""

    transport: asyncio.Transport

    def __init__(self, requests: Iterator[bytes], latencies: list[float], stop: float) -> None:
        self._requests = requests
        self._latencies = latencies
        self._stop = stop
        self._received = b""
        self._length = 0
        self._sent_at = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self.transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._length:
            head, end, _ = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 200"), self._received
            self._length = len(head) + 4 + int(head.lower().partition(_LENGTH)[2].partition(b"\r\n")[0])
        if len(self._received) >= self._length:
            now = time.perf_counter()
            self._latencies.append(now - self._sent_at)
            self._received, self._length = b"", 0
            if now < self._stop:
                self._send()
            else:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and time.perf_counter() >= self._stop:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(exc or ConnectionError("the server closed the connection"))


def _encode_requests(plan: LoadPlan) -> Iterator[bytes]:
    numbers = count(int(time.time() * 1000))
    for intent in cycle(plan.intents):
        text = f"{intent} for number {next(numbers)}" if plan.numbered else intent
        body = json.dumps({"intent": text})
        yield (
            f"POST {PATH} HTTP/1.1\r\nhost: {urlsplit(plan.url).netloc}\r\nauthorization: Bearer {plan.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        ).encode()


async def _recall(plan: LoadPlan) -> LoadResult:
    place = urlsplit(plan.url)
    latencies: list[float] = []
    requests = _encode_requests(plan)
    started, processor_before = time.perf_counter(), time.process_time()
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(plan.clients):
        _, client = await loop.create_connection(
            lambda: _Client(requests, latencies, started + plan.seconds), place.hostname or "", place.port or 80
        )
        clients.append(client.closed)
    await asyncio.gather(*clients)
    return LoadResult(latencies, time.perf_counter() - started, time.process_time() - processor_before)


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadPlan)
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        result = runner.run(_recall(plan))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
