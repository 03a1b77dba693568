"""The append-only log, as everything but a store sees it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec

from holdfast.events.envelope import Event


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """One line of a session list; what is needed to choose a session without reading its events."""

    id: str
    name: str | None
    model: str
    started_at: float
    last_event_at: float
    event_count: int
    parent_session_id: str | None = None


class Log(Protocol):
    """An append is durable, whole and in order once its future is done; a read sees every such append."""

    def append(self, events: Sequence[Event]) -> Future[None]: ...

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        """A session's events in order, from the one behind the event `after` on. Unknown session: none."""

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        """Newest activity first."""

    def lessons(self, *, limit: int) -> tuple[Event, ...]:
        """The newest `cache.learned` events of all sessions, oldest first; what cannot be read is passed over."""

    def delete(self, session_id: str) -> int:
        """Remove a session for good; how many events went."""

    def close(self) -> None:
        """Write what is queued, then let go of everything."""
