"""Keep-alive HTTP/1.1 connections to upstreams that stream request and response bytes without buffering them."""

import asyncio
import socket
import ssl
from collections import deque
from functools import cache
from typing import cast

from holdfast.gateway.http.headers import Headers, filter_request_headers
from holdfast.gateway.http.response_parser import ResponseHead, ResponseParser
from holdfast.gateway.routes import Upstream

CONNECT_SECONDS_MAX = 10.0

# Short, so that a request rarely meets a connection that the upstream is just closing: requests are never sent twice,
# because a proxy cannot know whether a request without a response was billed (docs/decisions/0029).
IDLE_SECONDS_MAX = 15.0
IDLE_CONNECTIONS_MAX = 128

# An upstream that was closing an idle connection as a request was sent on it answers within a round trip, with a reset.
CLOSING_SECONDS_MAX = 1.0

# Back-pressure: beyond this, stop reading from the upstream until the client has taken some.
BUFFERED_RESPONSE_BYTES_MAX = 256 * 1024


class ConnectionCutError(Exception):
    """The upstream was unreachable, or closed the connection before its response was complete."""


class UpstreamConnection(asyncio.Protocol):
    """Serves one exchange after another. Data received while no request is open aborts the connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._response: ResponseParser | None = None
        self._data_waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent = b""
        self._is_request_sent = False
        self._request_sent_at = 0.0
        self._chunked = False
        self._paused = False
        self.is_closed = False
        self.idle_since = 0.0

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport, so isinstance would fail.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            # Unsolicited data would be taken for the next request's response.
            self.abort()
            return
        response.feed(data)
        self._wake_reader()
        if response.buffered_bytes > BUFFERED_RESPONSE_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._on_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _on_closed(self) -> None:
        self.is_closed = True
        if self._response is not None:
            self._response.on_close()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._data_waiter is not None and not self._data_waiter.done():
            self._data_waiter.set_result(None)

    # Called by the forwarder.

    def start_request(self, method: str, target: bytes, headers: Headers, *, upgrades: bool = False) -> None:
        """Starts a request. Its body is chunked if a transfer-encoding header says so.

        With `upgrades`, the connection is a stream of bytes in both directions once the response has status 101.

        The head is written together with the body bytes that arrive within the next two loop iterations, which
        saves one small packet per request; without such bytes it is written alone.
        """
        names = {name.lower() for name, _ in headers}
        self._chunked = b"transfer-encoding" in names
        self._response = ResponseParser(method, upgrades=upgrades)
        self._is_request_sent = False
        lines = [b"%s %s HTTP/1.1\r\n" % (method.encode("ascii"), target)]
        lines += [b"%s: %s\r\n" % header for header in headers]
        self._unsent = b"".join((*lines, b"\r\n"))
        loop = asyncio.get_running_loop()
        # Nested call_soon runs after the iteration in which the first body message is delivered.
        loop.call_soon(loop.call_soon, self._flush)

    async def write_body(self, body: bytes) -> None:
        """Writes a part of the body, after waiting for the upstream's back-pressure to clear."""
        await self._writable.wait()
        if body:
            self._write(b"%x\r\n%s\r\n" % (len(body), body) if self._chunked else body)

    def end_request(self) -> None:
        """Ends the request body."""
        if self._chunked:
            self._write(b"0\r\n\r\n")
        self._flush()
        self._is_request_sent = True
        self._request_sent_at = asyncio.get_running_loop().time()

    async def read_head(self) -> ResponseHead:
        """Waits for the response head. Raises ConnectionCutError if the connection ends first."""
        response = self._current
        while response.head is None:
            if response.is_ended:
                raise ConnectionCutError
            await self._wait_for_data()
        return response.head

    async def read_chunk(self) -> bytes:
        """The body bytes received so far, empty at the end. Raises ConnectionCutError if the body is truncated."""
        response = self._current
        while not response.chunks:
            if response.is_complete:
                return b""
            if response.is_broken:
                raise ConnectionCutError
            await self._wait_for_data()
        received = response.take_body()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return received

    async def read_rest(self, bytes_max: int) -> bytes:
        """The body to its end, or until it is longer than that. Raises ConnectionCutError if it is truncated."""
        chunks, size = [], 0
        while not self.is_complete and size <= bytes_max:
            chunks.append(await self.read_chunk())
            size += len(chunks[-1])
        return b"".join(chunks)

    @property
    def has_delivered_request(self) -> bool:
        """Whether the upstream has the whole request, as far as that is known of a connection that was cut."""
        sent_seconds = asyncio.get_running_loop().time() - self._request_sent_at
        was_idle = self.idle_since > 0
        return self._is_request_sent and not (was_idle and sent_seconds < CLOSING_SECONDS_MAX)

    @property
    def is_complete(self) -> bool:
        """Whether the response is complete and all of it was consumed."""
        return self._response is not None and self._response.is_complete and not self._response.chunks

    def finish_exchange(self) -> bool:
        """Ends an exchange; returns whether the connection can be reused."""
        response, self._response = self._response, None
        reusable = response is not None and response.is_reusable and self._is_request_sent and not self.is_closed
        if not reusable:
            self.abort()
        return reusable

    def abort(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _wait_for_data(self) -> None:
        self._data_waiter = asyncio.get_running_loop().create_future()
        await self._data_waiter

    def _flush(self) -> None:
        if self._unsent:
            self._write(b"")

    def _write(self, data: bytes) -> None:
        unsent, self._unsent = self._unsent, b""
        if self._transport is not None and not self.is_closed:
            self._transport.write(unsent + data if unsent else data)

    @property
    def _current(self) -> ResponseParser:
        if self._response is None:
            raise ConnectionCutError
        return self._response


class UpstreamPool:
    """Connection pool per upstream; the most recently used idle connection is reused first."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int, bool], deque[UpstreamConnection]] = {}

    async def acquire(self, upstream: Upstream) -> UpstreamConnection:
        """Raises ConnectionCutError if the upstream cannot be reached."""
        loop = asyncio.get_running_loop()
        idle = self._idle.get(_pool_key(upstream), deque())
        while idle:
            # The most recently used one is the least likely to have been closed by the upstream.
            connection = idle.pop()
            if not connection.is_closed and loop.time() - connection.idle_since < IDLE_SECONDS_MAX:
                return connection
            connection.abort()
        return await self.connect(upstream)

    async def connect(self, upstream: Upstream) -> UpstreamConnection:
        """A new connection. Raises ConnectionCutError if the upstream cannot be reached."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                tls = _tls() if upstream.tls else None
                _, connection = await loop.create_connection(UpstreamConnection, upstream.host, upstream.port, ssl=tls)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise ConnectionCutError(_describe_failure(error)) from None
        return connection

    def release(self, upstream: Upstream, connection: UpstreamConnection) -> None:
        if not connection.finish_exchange():
            return
        idle = self._idle.setdefault(_pool_key(upstream), deque())
        connection.idle_since = asyncio.get_running_loop().time()
        idle.append(connection)
        if len(idle) > IDLE_CONNECTIONS_MAX:
            idle.popleft().abort()

    async def exchange(
        self, upstream: Upstream, method: str, path: bytes, *, headers: Headers, body: bytes, bytes_max: int
    ) -> tuple[int, bytes]:
        """Sends a request of our own with the client's headers; status and body of the response.

        Raises ConnectionCutError if there is none; a longer body is cut.
        """
        connection = await self.acquire(upstream)
        try:
            connection.start_request(method, path, _own_headers(headers, upstream, len(body)))
            await connection.write_body(body)
            connection.end_request()
            head = await connection.read_head()
            return head.status, await connection.read_rest(bytes_max)
        finally:
            self.release(upstream, connection)

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()


def _own_headers(headers: Headers, upstream: Upstream, size_bytes: int) -> Headers:
    """The client's headers for a body of that length; without accept-encoding, so that the response is plain."""
    dropped = (b"content-length", b"transfer-encoding", b"accept-encoding")
    forwarded = [(name, value) for name, value in headers if name not in dropped]
    return [*filter_request_headers(forwarded, upstream.authority), (b"content-length", b"%d" % size_bytes)]


def _pool_key(upstream: Upstream) -> tuple[str, int, bool]:
    return upstream.host, upstream.port, upstream.tls


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _describe_failure(error: Exception) -> str:
    """Why no connection was made, in words that name no address."""
    match error:
        case ssl.SSLError():
            return "TLS failed"
        case socket.gaierror() | UnicodeError():
            return "its name cannot be resolved"
        case ConnectionRefusedError():
            return "it refuses connections"
        case TimeoutError():
            return f"no connection within {CONNECT_SECONDS_MAX:g} s"
        case _:
            return "no connection can be made"
