"""How bytes that are no request are answered: in the shape that all errors have, and within limits."""

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.service.failures import RefusedError

HEAD_BYTES_MAX = 65_536
"""What a request may say in front of its body; nothing else would bound it."""


class BoundedProtocol(HttpToolsProtocol):
    _head_bytes = 0
    _in_head = True

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
