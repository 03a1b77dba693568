"""Decodes a streamed response into deltas, for every provider that streams server-sent events."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast.canonical.reply import Delta, Reply
from holdfast.errors import ProviderError
from holdfast.providers.sse import EVENT_BYTES_MAX, SentEvent, SseReader

REPLY_BYTES_MAX = 64 * 1024 * 1024
DELTA_CHARS_MAX = 64  # For streams that we encode: a delta of a provider has a few words.


class EventFold(Protocol):
    """Folds one provider's events into a response."""

    @property
    def finished(self) -> bool:
        """Whether the response is complete; events after its end are ignored."""

    def take_event(self, event: SentEvent) -> tuple[Delta, ...]:
        """The deltas of this event; `ProviderError` if it is unreadable or reports a failure."""

    def partial(self) -> Reply | None:
        """See `StreamDecoder.partial`."""


class _Type(msgspec.Struct, frozen=True):
    type: str = ""


def event_name(event: SentEvent) -> str:
    """The name of an event, from its `event:` line or its `type` field. Raises msgspec's errors."""
    # msgspec.Raw fields are not checked for valid UTF-8, so the whole event is checked here.
    event.data.decode()
    return event.name or msgspec.json.decode(event.data, type=_Type).type


class EventStreamReader:
    def __init__(
        self, fold: EventFold, *, event_bytes_max: int = EVENT_BYTES_MAX, reply_bytes_max: int = REPLY_BYTES_MAX
    ) -> None:
        self._events = SseReader(event_bytes_max=event_bytes_max)
        self._fold = fold
        self._bytes_left = self._reply_bytes_max = reply_bytes_max

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The chunk is buffered even if the caller does not iterate; its deltas then come with the next chunk's."""
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            raise ProviderError(
                "server_error", f"the provider streamed more than {self._reply_bytes_max} bytes in one response"
            )
        self._events.feed(chunk)
        return self._deltas()

    def partial(self) -> Reply | None:
        return self._fold.partial()

    def _deltas(self) -> Iterator[Delta]:
        for event in self._events.events():
            if not self._fold.finished:
                yield from self._fold.take_event(event)


def delta_parts(text: str) -> Iterator[str]:
    """The text in pieces as small as a provider would stream them."""
    return (text[at : at + DELTA_CHARS_MAX] for at in range(0, len(text), DELTA_CHARS_MAX))


def written_event(body: bytes, name: str = "") -> bytes:
    """One encoded event. Carried bytes may contain line breaks, which split into several `data:` lines."""
    event_line = b"event: %b\n" % name.encode() if name else b""
    return event_line + b"".join(b"data: " + line + b"\n" for line in body.splitlines()) + b"\n"
