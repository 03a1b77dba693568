"""How bytes that are no request are answered: in the shape that all errors have, and within limits."""

import asyncio
import re
from typing import cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.service.failures import RefusedError

HEAD_BYTES_MAX = 65_536
"""What a request may say in front of its body; nothing else would bound it."""


_HEAD_STARTS = b"HTTP/1.1 "
_UPGRADE = re.compile(rb"^upgrade[ \t]*:.*\r\n", re.IGNORECASE | re.MULTILINE)


class HeadsJoined:
    """A transport on which the head of an answer waits for what is written behind it in the same turn of the loop.

    So whoever asked is woken once. All else is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, spelled: bytes) -> None:
        if self._head or not spelled.startswith(_HEAD_STARTS):
            head, self._head = self._head, b""
            self._transport.write(head + spelled if head else spelled)
        else:
            self._head = spelled
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class BoundedProtocol(HttpToolsProtocol):
    """Another protocol that a client offers is not taken up: its request is read as if it had offered none."""

    _head_bytes = 0
    _in_head = True
    _at_rest = True
    _begins_here = True
    _received: bytes | None = None
    _offers_upgrade = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the server's own
        super().connection_made(transport)
        # It does what the server asks of a transport, and inherits nothing.
        self.transport = cast("asyncio.Transport", HeadsJoined(transport))

    def data_received(self, data: bytes) -> None:
        self._begins_here = self._at_rest
        if self._at_rest:
            self._received = data
        elif self._in_head and self._received is not None:
            self._received += data
        super().data_received(data)
        if self._in_head:
            # Only what comes without an end of the head in it is counted: behind the end stands the body.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("the headers are too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._begins_here:
            # Behind another one in what came together: where it begins is not known.
            self._received = None
        self._head_bytes, self._in_head = 0, True
        self._begins_here = self._at_rest = False

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._offers_upgrade = self.parser.should_upgrade()
        if not self._offers_upgrade:
            self._received = None
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._at_rest = True
        if not self._offers_upgrade:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser has left out the body of a request that offers an upgrade: read it all again without the offer."""
        head, end, rest = (self._received or b"").partition(b"\r\n\r\n")
        plain = _UPGRADE.sub(b"", head + b"\r\n")
        if not end or len(plain) == len(head) + 2:
            self.send_400_response("this service does not change protocols")
            return
        self.parser = httptools.HttpRequestParser(self)
        self._begins_here = self._at_rest = True
        super().data_received(plain + b"\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(RefusedError(400, "malformed_request", msg.rstrip(".")).reply)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
