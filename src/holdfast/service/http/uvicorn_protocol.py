"""uvicorn's protocols for HTTP and WebSocket, with bounded request heads, our error format, and pings passed on."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Ping, Pong, Request

from holdfast.service.context import AppContext
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

BODY_SECONDS = 30.0
BODY_BYTES_A_SECOND_MIN = 500
"""In each period of BODY_SECONDS a body that is not complete has to bring this many bytes a second, as far as we are
ready to read them: one that comes drop by drop would hold its connection for ever."""

WAITING_CONNECTIONS_MAX = 4_096
"""Connections without a complete request head. Beyond it the oldest is closed, of the same address if that has a
quarter of them: a client sends its head at once, so the oldest is none that somebody waits for, and descriptors stay
free for requests that are complete. Also at most half of the descriptors that the process may open."""

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

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_lost()
        super().connection_lost(exc)

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


class WaitingConnections:
    """Connections without a complete request head, oldest first, of each address."""

    def __init__(self) -> None:
        self._all: OrderedDict[BoundedProtocol, None] = OrderedDict()
        self._by_address: dict[str, OrderedDict[BoundedProtocol, None]] = {}

    def __contains__(self, connection: "BoundedProtocol") -> bool:
        return connection in self._all

    def add(self, connection: "BoundedProtocol") -> None:
        self._all[connection] = None
        same = self._by_address.setdefault(connection.peer, OrderedDict())
        same[connection] = None
        waiting_max = min(WAITING_CONNECTIONS_MAX, get_descriptors_max() // 2)
        if len(self._all) > waiting_max:
            oldest = next(iter(same if len(same) > waiting_max // 4 else self._all))
            self.discard(oldest)
            oldest.transport.close()

    def discard(self, connection: "BoundedProtocol") -> None:
        if connection in self._all:
            del self._all[connection]
            same = self._by_address[connection.peer]
            del same[connection]
            if not same:
                del self._by_address[connection.peer]


class BoundedProtocol(HttpToolsProtocol):
    """Upgrades to WebSocket only; a request that offers anything else is parsed as if it had not."""

    peer = ""
    _head_bytes = 0
    _body_bytes = 0
    _in_head = True
    _is_idle = True
    _starts_request = True
    _received: bytes | None = None
    _offers_upgrade = False
    _deadline: asyncio.TimerHandle | None = None
    _address: str | None = None

    def __init__(self, *args: Any, context: AppContext, waiting: WaitingConnections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = context.connections
        self._encode_refusal = context.encode_refusal
        self._waiting = waiting

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # same signature as uvicorn's protocol
        super().connection_made(transport)
        # HeadBufferingTransport has the methods that uvicorn calls, but is no subclass of Transport.
        self.transport = cast("asyncio.Transport", HeadBufferingTransport(transport))
        self.peer = self.client[0] if self.client else ""
        self._connections.open_count += 1
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        self._waiting.discard(self)
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        self._connections.open_count -= 1
        self._count_for(None)

    def _count_for(self, address: str | None) -> None:
        """Counts the connection for this address, and no longer for the one before."""
        if self._address is not None:
            self._connections.remove(self._address)
        if address is not None:
            self._connections.add(address)
        self._address = address

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._connections.proxies.is_trusted(self.peer):
            # The next request on a proxy's connection may be another client's.
            self._count_for(None)

    def _wait_for_head(self) -> None:
        self._set_deadline(HEAD_SECONDS_MAX)
        self._waiting.add(self)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        is_body = not self._in_head and not self._is_idle
        body_bytes, self._body_bytes = self._body_bytes, 0
        if is_body and (self.flow.read_paused or body_bytes >= BODY_SECONDS * BODY_BYTES_A_SECOND_MIN):
            # It arrives; or we do not read, because the upstream does not: not the client's fault.
            self._set_deadline(BODY_SECONDS)
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
        self._body_bytes += len(data)
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
        self._waiting.discard(self)
        self._set_deadline(BODY_SECONDS)
        self._body_bytes = 0
        self._count_for(self._connections.proxies.find_address(self.peer, self.headers))
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
        protocol = self.transport.get_protocol()
        if isinstance(protocol, PingPassingProtocol):
            protocol.on_lost = self._leave

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
        # Once: a CONNECT request is an upgrade without the header too.
        self._received = None
        self.parser = httptools.HttpRequestParser(self)
        self._starts_request = self._is_idle = True
        super().data_received(plain + b"\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        self._send_refusal(400, "malformed_request", msg.rstrip("."))

    def _send_refusal(self, status: int, code: str, message: str) -> None:
        path = vars(self).get("url", b"").partition(b"?")[0].decode("latin-1")
        status, body = self._encode_refusal(path, ApiError(status, code, message))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
