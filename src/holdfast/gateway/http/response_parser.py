"""Incremental parser of upstream HTTP responses: head, body chunks, and whether the response is complete."""

from collections import deque

import httptools
import msgspec

from holdfast.gateway.http.headers import Headers

# httptools has no limit of its own, so an endless head would fill the memory.
HEADER_BYTES_MAX = 256 * 1024


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    headers: Headers


class ResponseParser:
    """Fed by a connection, consumed by the forwarder. Interim (1xx) responses are skipped.

    With `upgrades`, status 101 is the response, and everything after its head is a body that ends with the connection.
    """

    def __init__(self, method: str, *, upgrades: bool = False) -> None:
        self._has_no_body = method == "HEAD"
        self._upgrades = upgrades
        self.is_upgraded = False
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._header_bytes = 0
        self._has_length = False
        self._keeps_alive = False
        self.head: ResponseHead | None = None
        self.chunks: deque[bytes] = deque()
        self.buffered_bytes = 0
        self.is_complete = False
        self.is_broken = False
        self.has_surplus = False

    @property
    def is_ended(self) -> bool:
        """Whether no more bytes are expected."""
        return self.is_complete or self.is_broken

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can be reused."""
        return (
            self.is_complete
            and self._has_length
            and not self.has_surplus
            and not self._has_no_body
            and self._keeps_alive
        )

    def feed(self, received: bytes) -> None:
        if self.is_ended:
            self.has_surplus = True
            return
        if self.is_upgraded:
            self.on_body(received)
            return
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserUpgrade as upgrade:
            if self.is_upgraded:
                # The error's argument is the number of bytes that belong to the head.
                self.on_body(received[upgrade.args[0] :])
            else:
                self.is_broken = True
        except httptools.HttpParserError:
            if self.is_complete:
                self.has_surplus = True
            else:
                self.is_broken = True
        if self.head is None:
            self._header_bytes += len(received)
            if self._header_bytes > HEADER_BYTES_MAX:
                self.is_broken = True

    def on_close(self) -> None:
        """The connection closed. That completes a body without declared length, and truncates any other."""
        if self.is_complete:
            return
        if self.head is not None and not self._has_length and not self.is_broken:
            self.is_complete = True
        else:
            self.is_broken = True

    def take_body(self) -> bytes:
        """Removes and returns the buffered body bytes."""
        body = b"".join(self.chunks) if len(self.chunks) != 1 else self.chunks[0]
        self.chunks.clear()
        self.buffered_bytes = 0
        return body

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.has_surplus = True
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 and self._upgrades:
            self.head = ResponseHead(status, self._headers)
            self.is_upgraded = True
            return
        # 1xx heads (100 Continue, 103 Early Hints) are followed by the real response.
        if self.is_complete or status < 200:
            return
        # Without a declared length the body ends with the connection, which can then not be reused (RFC 9112, 6.3).
        names = {name.lower() for name, _ in self._headers}
        self._has_length = status in (204, 304) or bool(names & {b"content-length", b"transfer-encoding"})
        self._keeps_alive = self._parser.should_keep_alive()
        self.head = ResponseHead(status, self._headers)
        self.is_complete = self._has_no_body

    def on_body(self, body: bytes) -> None:
        if body and not self.is_complete:
            self.chunks.append(body)
            self.buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.head is not None and not self.is_upgraded:
            self.is_complete = True
