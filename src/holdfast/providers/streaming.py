"""How a streamed reply is read, and cut into deltas, for every provider that streams server-sent events."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast.canonical.reply import Delta, Reply
from holdfast.errors import ProviderError
from holdfast.providers.sse import EVENT_BYTES_MAX, SentEvent, SseReader

REPLY_BYTES_MAX = 64 * 1024 * 1024
DELTA_CHARS_MAX = 64


class EventFold(Protocol):
    """What one provider's events add up to."""

    @property
    def finished(self) -> bool:
        """Whether the reply is whole; what comes behind its end says nothing."""

    def take_event(self, event: SentEvent) -> tuple[Delta, ...]:
        """The deltas that this event means; `ProviderError` where it cannot be read, or tells of a failure."""

    def partial(self) -> Reply | None:
        """See `StreamReader.partial`."""


class _Type(msgspec.Struct, frozen=True):
    type: str = ""


def event_name(event: SentEvent) -> str:
    """What an event is called, by its sender or by itself. Raises msgspec's errors."""
    # Parts that are kept as bytes are not checked for it otherwise.
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
        """What is fed is kept even if the deltas are not asked for; they then come with the next chunk's."""
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            raise ProviderError(
                "server_error", f"the provider streamed more than {self._reply_bytes_max} bytes in one reply"
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
    """The text in parts as small as a provider would stream them."""
    return (text[at : at + DELTA_CHARS_MAX] for at in range(0, len(text), DELTA_CHARS_MAX))


def written_event(body: bytes, name: str = "") -> bytes:
    """One event. What is kept as bytes may hold line breaks, and a line of an event may not."""
    named = b"event: %b\n" % name.encode() if name else b""
    return named + b"".join(b"data: " + line + b"\n" for line in body.splitlines()) + b"\n"
