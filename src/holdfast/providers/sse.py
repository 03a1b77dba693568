"""Parses server-sent events from a stream of bytes, however it is split into chunks."""

from collections.abc import Iterator

import msgspec

from holdfast.errors import ProviderError

EVENT_BYTES_MAX = 16 * 1024 * 1024


class SentEvent(msgspec.Struct, frozen=True):
    """`name` is empty if the event has no `event:` line."""

    name: str
    data: bytes


class SseReader:
    """Lines end in LF or CRLF. Input is buffered until `events` is iterated."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._unread = bytearray()
        self._searched = 0
        self._name = ""
        self._lines: list[bytes] = []
        self._event_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._unread += chunk

    def events(self) -> Iterator[SentEvent]:
        """Every event that is complete by now; each is returned once."""
        while (line := self._next_line()) is not None:
            if line:
                self._add_line(line)
            elif self._lines:
                event = SentEvent(self._name, b"\n".join(self._lines))
                self._reset_event()
                yield event
            else:
                self._reset_event()

    def _next_line(self) -> bytes | None:
        # Searching continues where the last chunk ended: a long event in many chunks is scanned only once.
        end = self._unread.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._unread)
            self._check_size(self._searched)
            return None
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        self._check_size(end)
        return line.removesuffix(b"\r")

    def _add_line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"data":
            self._lines.append(value)
        self._event_bytes += len(line)

    def _reset_event(self) -> None:
        self._name = ""
        self._lines = []
        self._event_bytes = 0

    def _check_size(self, next_bytes: int) -> None:
        if self._event_bytes + next_bytes > self._event_bytes_max:
            raise ProviderError(
                "server_error", f"the provider streamed an event of more than {self._event_bytes_max} bytes"
            )
