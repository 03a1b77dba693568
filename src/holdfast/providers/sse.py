"""Parses server-sent events, however the stream is split into chunks, and folds them into a response."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast.errors import ProviderError
from holdfast.types.reply import Delta, Reply

EVENT_BYTES_MAX = 16 * 1024 * 1024
STREAM_BYTES_MAX = 64 * 1024 * 1024
DELTA_CHARS_MAX = 64  # For streams that we encode: a delta of a provider has a few words.


class ServerSentEvent(msgspec.Struct, frozen=True):
    """`name` is empty if the event has no `event:` line."""

    name: str
    data: bytes


class SseParser:
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

    def events(self) -> Iterator[ServerSentEvent]:
        """Every event that is complete by now; each is returned once."""
        while (line := self._next_line()) is not None:
            if line:
                self._add_line(line)
            elif self._lines:
                event = ServerSentEvent(self._name, b"\n".join(self._lines))
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
            failure = f"the provider streamed an event of more than {self._event_bytes_max} bytes"
            raise ProviderError("server_error", failure)


class EventFold(Protocol):
    """Folds one provider's events into a response."""

    @property
    def is_finished(self) -> bool:
        """Whether the response is complete; events after its end are ignored."""

    def take_event(self, event: ServerSentEvent) -> tuple[Delta, ...]:
        """The deltas of this event; `ProviderError` if it is unreadable or reports a failure."""

    def partial(self) -> Reply | None:
        """See `StreamDecoder.partial`."""


class _Type(msgspec.Struct, frozen=True):
    type: str = ""


def get_event_name(event: ServerSentEvent) -> str:
    """The name of an event, from its `event:` line or its `type` field. Raises msgspec's errors."""
    # msgspec.Raw fields are not checked for valid UTF-8, so the whole event is checked here.
    event.data.decode()
    return event.name or msgspec.json.decode(event.data, type=_Type).type


class EventStreamDecoder:
    """The `StreamDecoder` of every provider that streams server-sent events; the fold knows the provider."""

    def __init__(
        self, fold: EventFold, *, event_bytes_max: int = EVENT_BYTES_MAX, reply_bytes_max: int = STREAM_BYTES_MAX
    ) -> None:
        self._events = SseParser(event_bytes_max=event_bytes_max)
        self._fold = fold
        self._bytes_left = self._reply_bytes_max = reply_bytes_max

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The chunk is buffered even if the caller does not iterate; its deltas then come with the next chunk's."""
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            failure = f"the provider streamed more than {self._reply_bytes_max} bytes in one response"
            raise ProviderError("server_error", failure)
        self._events.feed(chunk)
        return self._deltas()

    def partial(self) -> Reply | None:
        return self._fold.partial()

    def _deltas(self) -> Iterator[Delta]:
        for event in self._events.events():
            if not self._fold.is_finished:
                yield from self._fold.take_event(event)


def split_into_deltas(text: str) -> Iterator[str]:
    """The text in pieces as small as a provider would stream them."""
    return (text[at : at + DELTA_CHARS_MAX] for at in range(0, len(text), DELTA_CHARS_MAX))


def encode_event(body: bytes, name: str = "") -> bytes:
    """One encoded event. Carried bytes may contain line breaks, which split into several `data:` lines."""
    event_line = b"event: %b\n" % name.encode() if name else b""
    return event_line + b"".join(b"data: " + line + b"\n" for line in body.splitlines()) + b"\n"
