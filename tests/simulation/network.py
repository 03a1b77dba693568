"""Connections in memory between the event loops of two processes, and HTTP over them."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from tests.simulation.machine import Process, SimulatedLoop, current

from holdfast.simulator.exchange import ConnectionCut, Pause, SimulatedResponse

LATENCY_SECONDS = 0.005


class Link(asyncio.Transport):
    """One end of a connection. Bytes arrive in order; what was sent before a connection ends still arrives."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        super().__init__()
        self._loop, self._process = loop, process
        self.protocol: asyncio.Protocol | None = None
        self.peer: Link | None = None
        self._is_closed = False
        self._arrives_at = 0.0
        process.on_end.append(self._hang_up)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closed and self.peer is not None:
            self._deliver(self.peer.receive, bytes(data))

    def abort(self) -> None:
        if not self._is_closed:
            self._hang_up()
            if self.protocol is not None:
                self._loop.call_soon(self.protocol.connection_lost, None)

    close = abort

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        """Nothing is limited."""

    def resume_reading(self) -> None:
        pass

    def receive(self, data: bytes) -> None:
        if not self._is_closed and self.protocol is not None:
            self.protocol.data_received(data)

    def _hang_up(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self.peer is not None:
                self._deliver(self.peer.lose, None)

    def lose(self, _: None) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self.protocol is not None:
                self.protocol.connection_lost(None)

    def _deliver(self, callback: Callable[[Any], None], data: bytes | None) -> None:
        assert self.peer is not None
        machine = self._process.machine
        latency = machine.random.uniform(0.2, 2.0) * LATENCY_SECONDS
        # Timers of one moment have no order.
        self._arrives_at = max(machine.now + latency, self._arrives_at + 1e-6)
        self.peer._loop.call_at(self._arrives_at, callback, data)


def connect_links(
    loops: tuple[SimulatedLoop, SimulatedLoop],
    processes: tuple[Process, Process],
    protocols: tuple[asyncio.Protocol, asyncio.Protocol],
) -> tuple[Link, Link]:
    """For the process of the first: the second one learns of the connection later."""
    near, far = (Link(loop, process) for loop, process in zip(loops, processes, strict=True))
    (near.protocol, far.protocol), near.peer, far.peer = protocols, far, near
    protocols[0].connection_made(near)
    loops[1].call_at(current().machine.now, protocols[1].connection_made, far)
    return near, far


class HttpRequest:
    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path, self.headers, self.body = path, headers, body


class HttpServerConnection(asyncio.Protocol):
    """The provider's end: reads requests one after the other, and has each answered by `respond`."""

    def __init__(self, loop: SimulatedLoop, respond: Callable[["HttpServerConnection", HttpRequest], Any]) -> None:
        self._loop, self._respond = loop, respond
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._headers, self._body = "", dict[str, str](), b""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = "", {}, b""

    def on_url(self, url: bytes) -> None:
        self._path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._loop.create_task(self._respond(self, HttpRequest(self._path, self._headers, self._body)))

    # Called by the provider.

    def cut(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    async def send(self, response: SimulatedResponse, *, pause_seconds: Callable[[], float], cut_after: int) -> None:
        """Sends a response in chunks; hangs up after `cut_after` of them, if it has as many."""
        assert self._transport is not None
        head = [f"HTTP/1.1 {response.status} Any", *(f"{name}: {value}" for name, value in response.headers.items())]
        self._transport.write("\r\n".join([*head, "transfer-encoding: chunked", "", ""]).encode())
        for number, chunk in enumerate(response.chunks):
            await asyncio.sleep(pause_seconds())
            if number == cut_after or isinstance(chunk, ConnectionCut):
                self.cut()
                return
            if isinstance(chunk, Pause):
                await asyncio.sleep(chunk.seconds)
            elif chunk:
                self._transport.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self._transport.write(b"0\r\n\r\n")
