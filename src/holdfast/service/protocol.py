"""How bytes that are no request are answered: in the shape that all errors have, and within limits."""

import asyncio
from typing import cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.service.failures import RefusedError

HEAD_BYTES_MAX = 65_536
"""What a request may say in front of its body; nothing else would bound it."""


_HEAD_STARTS = b"HTTP/1.1 "


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
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the server's own
        super().connection_made(transport)
        # It does what the server asks of a transport, and inherits nothing.
        self.transport = cast("asyncio.Transport", HeadsJoined(transport))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            # Only what comes without an end of the head in it is counted: behind the end stands the body.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("the headers are too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes, self._in_head = 0, True

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(RefusedError(400, "malformed_request", msg.rstrip(".")).reply)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
