"""Incremental parser of upstream HTTP responses: head, body chunks, and whether the response is complete."""

from collections import deque

import httptools
import msgspec

Headers = list[tuple[bytes, bytes]]

# httptools has no limit of its own, so an endless head would fill the memory.
HEADER_BYTES_MAX = 256 * 1024


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    headers: Headers


class ResponseParser:
    """Fed by a connection, consumed by the forwarder. Interim (1xx) responses are skipped."""

    def __init__(self, method: str) -> None:
        self._has_no_body = method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._header_bytes = 0
        self._has_length = False
        self._keeps_alive = False
        self.head: ResponseHead | None = None
        self.chunks: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.complete = False
        self.broken = False
        self.surplus = False

    @property
    def ended(self) -> bool:
        """Whether no more bytes are expected."""
        return self.complete or self.broken

    @property
    def can_be_followed(self) -> bool:
        """Whether the connection can be reused."""
        return self.complete and self._has_length and not self.surplus and not self._has_no_body and self._keeps_alive

    def feed(self, received: bytes) -> None:
        if self.ended:
            self.surplus = True
            return
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self.complete:
                self.surplus = True
            else:
                self.broken = True
        if self.head is None:
            self._header_bytes += len(received)
            if self._header_bytes > HEADER_BYTES_MAX:
                self.broken = True

    def closed(self) -> None:
        """The connection closed. That completes a body without declared length, and truncates any other."""
        if self.complete:
            return
        if self.head is not None and not self._has_length and not self.broken:
            self.complete = True
        else:
            self.broken = True

    def take(self) -> bytes:
        """Removes and returns the buffered body bytes."""
        body = b"".join(self.chunks) if len(self.chunks) != 1 else self.chunks[0]
        self.chunks.clear()
        self.waiting_bytes = 0
        return body

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        # 1xx heads (100 Continue, 103 Early Hints) are followed by the real response.
        if self.complete or status < 200:
            return
        # Without a declared length the body ends with the connection, which can then not be reused (RFC 9112, 6.3).
        names = {name.lower() for name, _ in self._headers}
        self._has_length = status in (204, 304) or bool(names & {b"content-length", b"transfer-encoding"})
        self._keeps_alive = self._parser.should_keep_alive()
        self.head = ResponseHead(status, self._headers)
        self.complete = self._has_no_body

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.chunks.append(body)
            self.waiting_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.complete = True
