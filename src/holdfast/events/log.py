"""The append-only event log as seen by everything but a store."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec

from holdfast.events.envelope import Event


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """One row of a session list: enough to choose a session without reading its events."""

    id: str
    name: str | None
    model: str
    started_at: float
    last_event_at: float
    event_count: int
    parent_session_id: str | None = None


class Log(Protocol):
    """An append is durable, complete and in order once its future is done; every later read sees it."""

    def append(self, events: Sequence[Event]) -> Future[None]: ...

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        """A session's events in order, starting after the event `after`. Empty for an unknown session."""

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        """The most recently active first."""

    def lessons(self, *, limit: int) -> tuple[Event, ...]:
        """The newest `cache.learned` events of all sessions, oldest first; unreadable ones are skipped."""

    def delete(self, session_id: str) -> int:
        """Deletes a session permanently and returns the number of events deleted."""

    def close(self) -> None:
        """Writes what is queued, then releases all resources."""
