"""What an upstream answers, read from its bytes as they come: head, body, and whether it is whole."""

from collections import deque

import httptools
import msgspec

Headers = list[tuple[bytes, bytes]]

HEADER_BYTES_MAX = 256 * 1024


class Head(msgspec.Struct, frozen=True):
    status: int
    headers: Headers


class IncomingReply:
    """Fed by a connection, emptied by whoever forwards. Interim answers are passed over."""

    def __init__(self, method: str) -> None:
        self._bodiless = method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._header_bytes = 0
        self._framed = False
        self._stays = False
        self.head: Head | None = None
        self.chunks: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.complete = False
        self.broken = False
        self.surplus = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.complete or self.broken

    @property
    def can_be_followed(self) -> bool:
        """Whether another reply can come on the same connection."""
        return self.complete and self._framed and not self.surplus and not self._bodiless and self._stays

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
        """The connection has ended: a body without a length is whole then, and every other is not."""
        if self.complete:
            return
        if self.head is not None and not self._framed and not self.broken:
            self.complete = True
        else:
            self.broken = True

    def take(self) -> bytes:
        """All of the body that has come since."""
        taken = b"".join(self.chunks) if len(self.chunks) != 1 else self.chunks[0]
        self.chunks.clear()
        self.waiting_bytes = 0
        return taken

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.complete or status < 200:
            return
        names = {name.lower() for name, _ in self._headers}
        self._framed = status in (204, 304) or bool(names & {b"content-length", b"transfer-encoding"})
        self._stays = self._parser.should_keep_alive()
        self.head = Head(status, self._headers)
        self.complete = self._bodiless

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.chunks.append(body)
            self.waiting_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.complete = True
