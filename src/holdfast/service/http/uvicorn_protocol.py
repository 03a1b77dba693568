"""uvicorn's protocols for HTTP and WebSocket, with bounded request heads, our error format, and pings passed on."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Ping, Pong, Request

from holdfast.service.http.routes import ApiError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

HEAD_BYTES_MAX = 65_536
"""Size limit of a request head; httptools has none."""

CLIENT_MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Size limit of a client's WebSocket message; a longer one closes the connection with code 1009."""

HEAD_SECONDS_MAX = 10.0
"""From the first byte of a request head, or from the connection, to its end."""

BODY_IDLE_SECONDS_MAX = 30.0
"""Without a byte of a body that we are ready to read."""

WAITING_CONNECTIONS_MAX = 4_096
"""Connections without a complete request head. Beyond it the oldest is closed: a client sends its head at once, so the
oldest is none that somebody waits for, and descriptors stay free for requests that are complete. Also at most half of
the descriptors that the process may open."""

DESCRIPTORS_WANTED = 16_384

_HEAD_STARTS = b"HTTP/1.1 "
_UPGRADE = re.compile(rb"^upgrade[ \t]*:.*\r\n", re.IGNORECASE | re.MULTILINE)


def get_descriptors_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else 2 * WAITING_CONNECTIONS_MAX


def raise_descriptors_max() -> None:
    """To DESCRIPTORS_WANTED, if the system allows it: shells start processes with 1,024 or fewer."""
    if resource:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


class HeadBufferingTransport:
    """A transport that writes a response head together with the body bytes of the same loop iteration.

    One packet instead of two means one wake-up of the client. Everything else is passed to the wrapped transport.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head or not data.startswith(_HEAD_STARTS):
            head, self._head = self._head, b""
            self._transport.write(head + data if head else data)
        else:
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class PingPassingProtocol(WSProtocol):
    """Passes pings and pongs to the application as messages, and answers broken frames with the reason they broke.

    An application that takes them finds the extension `holdfast.websocket.ping` in its scope.
    """

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        self.scope["extensions"]["holdfast.websocket.ping"] = {}

    def handle_ping(self, event: Ping) -> None:
        self._enqueue("websocket.ping", bytes(event.payload))

    def handle_pong(self, event: Pong) -> None:
        self._enqueue("websocket.pong", bytes(event.payload))

    def _enqueue(self, kind: str, payload: bytes) -> None:
        message = {"type": kind, "bytes": payload}
        self.queue.put_nowait(message)  # type: ignore[arg-type] # a message of our extension
        # As for any message: a flood of pings must not grow the queue.
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_close(self, event: CloseConnection) -> None:
        if self.conn.state is ConnectionState.OPEN and not self.close_sent and not self.transport.is_closing():
            # No frame of the client: wsproto reports bytes that are no valid frame, and has not answered them.
            self.transport.write(self.conn.send(event))
        super().handle_close(event)

    async def send(self, message: MutableMapping[str, Any]) -> None:  # type: ignore[override] # with our extension
        if message["type"] not in ("websocket.ping", "websocket.pong"):
            await super().send(cast("ASGISendEvent", message))
            return
        await self.writable.wait()
        frame = Ping if message["type"] == "websocket.ping" else Pong
        if not (self.disconnected or self.close_sent or self.transport.is_closing()):
            self.transport.write(self.conn.send(frame(message["bytes"])))


class BoundedProtocol(HttpToolsProtocol):
    """Upgrades to WebSocket only; a request that offers anything else is parsed as if it had not."""

    _head_bytes = 0
    _in_head = True
    _is_idle = True
    _starts_request = True
    _received: bytes | None = None
    _offers_upgrade = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # same signature as uvicorn's protocol
        super().connection_made(transport)
        # HeadBufferingTransport has the methods that uvicorn calls, but is no subclass of Transport.
        self.transport = cast("asyncio.Transport", HeadBufferingTransport(transport))
        self._waiting: OrderedDict[BoundedProtocol, None] = vars(self.server_state).setdefault("waiting", OrderedDict())
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._set_deadline(HEAD_SECONDS_MAX)
        self._waiting[self] = None
        if len(self._waiting) > min(WAITING_CONNECTIONS_MAX, get_descriptors_max() // 2):
            oldest, _ = self._waiting.popitem(last=False)
            oldest.transport.close()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        is_body = not self._in_head and not self._is_idle
        if is_body and self.flow.read_paused:
            # We do not read, because the upstream does not: not the client's fault.
            self._set_deadline(BODY_IDLE_SECONDS_MAX)
        elif not is_body and self.cycle is not None and not self.cycle.response_complete:
            # The start of the next request came while a response is being sent; that goes first.
            self._set_deadline(HEAD_SECONDS_MAX)
        elif is_body and self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        elif not self.transport.is_closing():
            part = "body" if is_body else "head"
            self._send_refusal(408, "request_timeout", f"the request {part} did not arrive in time")

    def data_received(self, data: bytes) -> None:
        self._starts_request = self._is_idle
        if not self._in_head and not self._is_idle:
            self._set_deadline(BODY_IDLE_SECONDS_MAX)
        if self._is_idle:
            if self not in self._waiting:
                self._wait_for_head()
            self._received = data
        elif self._in_head and self._received is not None:
            self._received += data
        super().data_received(data)
        if self._in_head:
            # Count only data without the end of the head: what follows the end is the body.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("the headers are too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._starts_request:
            # Pipelined after another request in the same data: its start is unknown.
            self._received = None
        self._head_bytes, self._in_head = 0, True
        self._starts_request = self._is_idle = False

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._waiting.pop(self, None)
        self._set_deadline(BODY_IDLE_SECONDS_MAX)
        self._offers_upgrade = self.parser.should_upgrade() and not self._should_upgrade()
        if not self._offers_upgrade:
            self._received = None
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_idle = True
        self._set_deadline(None)
        if not self._offers_upgrade:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._set_deadline(None)
        super().handle_websocket_upgrade()

    def _should_upgrade(self) -> bool:
        names = {name for name, _ in self.headers}
        return self.parser.get_method() == b"GET" and b"sec-websocket-key" in names and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser skips the body of a request that offers an upgrade, so parse it again without the offer."""
        head, end, rest = (self._received or b"").partition(b"\r\n\r\n")
        plain = _UPGRADE.sub(b"", head + b"\r\n")
        if not end or len(plain) == len(head) + 2:
            self.send_400_response("protocol upgrades are not supported")
            return
        self.parser = httptools.HttpRequestParser(self)
        self._starts_request = self._is_idle = True
        super().data_received(plain + b"\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        self._send_refusal(400, "malformed_request", msg.rstrip("."))

    def _send_refusal(self, status: int, code: str, message: str) -> None:
        body = msgspec.json.encode(ApiError(status, code, message).response)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
