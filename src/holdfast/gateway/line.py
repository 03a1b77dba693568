"""One connection to an upstream: a request's bytes out as they come in, its reply's bytes as they come."""

import asyncio
import ssl
from collections import deque
from functools import cache
from typing import cast

from holdfast.gateway.reply import Head, Headers, IncomingReply
from holdfast.gateway.routing import Upstream

CONNECT_SECONDS_MAX = 10.0
IDLE_SECONDS_MAX = 15.0
IDLE_LINES_MAX = 128
WAITING_BYTES_MAX = 256 * 1024


class CutError(Exception):
    """The upstream ended, or was never there, before its reply was whole."""


class Line(asyncio.Protocol):
    """Carries one exchange after another. What it is sent while nothing was asked ends it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: IncomingReply | None = None
        self._arriving: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent = b""
        self._sent_whole = False
        self._chunked = False
        self._paused = False
        self.closed = False
        self.idle_since = 0.0

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Faster loops have transports of their own, which only behave like those of asyncio.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()
            return
        reply.feed(data)
        self._arrived()
        if reply.waiting_bytes > WAITING_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _ended(self) -> None:
        self.closed = True
        if self._reply is not None:
            self._reply.closed()
        self._arrived()

    def _arrived(self) -> None:
        if self._arriving is not None and not self._arriving.done():
            self._arriving.set_result(None)

    # Called by whoever forwards.

    def ask(self, method: str, target: bytes, headers: Headers) -> None:
        """The head of a request; its body is chunked where no header tells its length.

        It goes out with what of the body is said before the loop's next turn is over, so that an upstream is woken
        once; where that is nothing, alone.
        """
        names = {name.lower() for name, _ in headers}
        self._chunked = b"transfer-encoding" in names
        self._reply = IncomingReply(method)
        self._sent_whole = False
        lines = [b"%s %s HTTP/1.1\r\n" % (method.encode("ascii"), target)]
        lines += [b"%s: %s\r\n" % header for header in headers]
        self._unsent = b"".join((*lines, b"\r\n"))
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._flush)

    async def say(self, body: bytes) -> None:
        """A part of the body; waits first while the upstream takes no more."""
        await self._writable.wait()
        if body:
            self._write(b"%x\r\n%s\r\n" % (len(body), body) if self._chunked else body)

    def said(self) -> None:
        """The body is whole."""
        if self._chunked:
            self._write(b"0\r\n\r\n")
        self._flush()
        self._sent_whole = True

    async def head(self) -> Head:
        """Raises CutError where there is none."""
        reply = self._current
        while reply.head is None:
            if reply.ended:
                raise CutError
            await self._more()
        return reply.head

    async def chunk(self) -> bytes:
        """What has come of the body, empty at its end. Raises CutError where it ends before it is whole."""
        reply = self._current
        while not reply.chunks:
            if reply.complete:
                return b""
            if reply.broken:
                raise CutError
            await self._more()
        taken = reply.take()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return taken

    @property
    def is_whole(self) -> bool:
        """Whether the reply is whole, and all of it was taken."""
        return self._reply is not None and self._reply.complete and not self._reply.chunks

    def finish(self) -> bool:
        """Ends an exchange; whether the line can carry another."""
        reply, self._reply = self._reply, None
        fit = reply is not None and reply.can_be_followed and self._sent_whole and not self.closed
        if not fit:
            self.abort()
        return fit

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        self._arriving = asyncio.get_running_loop().create_future()
        await self._arriving

    def _flush(self) -> None:
        if self._unsent:
            self._write(b"")

    def _write(self, spelled: bytes) -> None:
        unsent, self._unsent = self._unsent, b""
        if self._transport is not None and not self.closed:
            self._transport.write(unsent + spelled if unsent else spelled)

    @property
    def _current(self) -> IncomingReply:
        if self._reply is None:
            raise CutError
        return self._reply


class Lines:
    """The connections of a process to its upstreams; those at rest are used again."""

    def __init__(self) -> None:
        self._resting: dict[tuple[str, int, bool], deque[Line]] = {}

    async def take(self, upstream: Upstream) -> Line:
        """Raises CutError where the upstream cannot be reached."""
        loop = asyncio.get_running_loop()
        resting = self._resting.get(_place(upstream), deque())
        while resting:
            line = resting.pop()
            if not line.closed and loop.time() - line.idle_since < IDLE_SECONDS_MAX:
                return line
            line.abort()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                tls = _tls() if upstream.tls else None
                _, line = await loop.create_connection(Line, upstream.host, upstream.port, ssl=tls)
        except (OSError, TimeoutError, UnicodeError):
            raise CutError from None
        return line

    def give_back(self, upstream: Upstream, line: Line) -> None:
        if not line.finish():
            return
        resting = self._resting.setdefault(_place(upstream), deque())
        line.idle_since = asyncio.get_running_loop().time()
        resting.append(line)
        if len(resting) > IDLE_LINES_MAX:
            resting.popleft().abort()

    def close(self) -> None:
        for resting in self._resting.values():
            for line in resting:
                line.abort()
        self._resting.clear()


def _place(upstream: Upstream) -> tuple[str, int, bool]:
    return upstream.host, upstream.port, upstream.tls


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
