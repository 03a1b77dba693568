"""Events, the append-only log as everything but a store sees it, and the bus that announces what is on it."""

import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Literal, Protocol

import msgspec

from holdfast.events.payloads.calls import (
    LlmCallStarted,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
)
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.recovery import RecoveryPayload, ViewRepair
from holdfast.events.payloads.session import (
    ContextInjected,
    EpochOpened,
    MemoryEviction,
    MemoryUpdated,
    MessageAppended,
    TurnStarted,
)
from holdfast.events.payloads.union import AnyPayload

logger = logging.getLogger(__name__)
Actor = Literal["user", "agent", "system", "tool", "worker"]

# Version of the event format; a store refuses events of a later one.
SCHEMA_VERSION = 1


class Event(msgspec.Struct, frozen=True):
    """`at` is in seconds since the epoch. Ids are ordered by time, so the order of ids is the order of events."""

    id: str
    at: float
    session_id: str
    actor: Actor
    payload: AnyPayload
    turn_id: str | None = None
    parent_event_id: str | None = None
    version: int = SCHEMA_VERSION


EventListener = Callable[[Event], None]


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """One row of a session list: enough to choose a session without reading its events.

    `client` is the program behind a gateway. `opening` are the first words of the first request; they quote the prompt.
    `is_simulated` is 1 if the session costs no real money.
    """

    id: str
    name: str | None
    model: str
    started_at: float
    last_event_at: float
    event_count: int
    parent_session_id: str | None = None
    client: str | None = None
    opening: str | None = None
    caller_key_id: str | None = None
    caller_user_id: str | None = None
    caller_team_id: str | None = None
    is_simulated: int = 0


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """The end of a session's log in a store: what was computed from a log holds as long as its position is equal."""

    store: str
    event_count: int
    cells: tuple[object, ...]


class EventLog(Protocol):
    """An append is durable, complete and in order once its future is done; every later read sees it."""

    def append(self, events: Sequence[Event], *, at_head: bool = False) -> Future[None]:
        """Refused if another process has continued a session after the event that is to be continued here.

        With `at_head` the events follow what is there by then; refused only if both describe a request.
        """

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        """A session's events in order, starting after the event `after`. Empty for an unknown session."""

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        """The most recently active first."""

    def find_sessions(self, event_ids: Sequence[str]) -> frozenset[str]:
        """The sessions that have one of these events."""

    def learned_events(self, *, limit: int) -> tuple[Event, ...]:
        """The newest `cache.learned` events of all sessions, oldest first; unreadable ones are skipped."""

    def delete(self, session_id: str) -> int:
        """Deletes a session permanently and returns the number of events deleted."""

    def close(self) -> None:
        """Writes what is queued, then releases all resources."""


class EventBus:
    """Notifies listeners of events that are on the log; an exception in one listener affects no other."""

    def __init__(self) -> None:
        self._listeners: list[EventListener] = []

    def subscribe(self, listener: EventListener) -> Callable[[], None]:
        """Calls `listener` with every event from now on; call the returned function to unsubscribe."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            for listener in tuple(self._listeners):
                try:
                    listener(event)
                except Exception as error:  # noqa: BLE001 - an error of a listener must not reach the loop
                    # The error message could quote a prompt; its type cannot.
                    logger.warning("a listener failed on %s: %s", event_type_of(event.payload), type(error).__name__)


class Sensitivity(enum.StrEnum):
    PRIVATE = "private"
    PSEUDONYMOUS = "pseudonymous"


# Payloads that contain conversation content, or can.
_PRIVATE: frozenset[type[msgspec.Struct]] = frozenset(
    (
        ContextCompacted,
        ContextInjected,
        EpochOpened,
        LlmCallStarted,
        MemoryEviction,
        MemoryUpdated,
        ViewRepair,
        MessageAppended,
        RecoveryPayload,
        ToolCalled,
        ToolCompleted,
        ToolConfirmationRequested,
        ToolConfirmationResolved,
        ToolFailed,
        TurnStarted,
    )
)


def event_type_of(payload: AnyPayload) -> str:
    """The event's type, such as `turn.started`."""
    tag = type(payload).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def sensitivity_of(payload: AnyPayload) -> Sensitivity:
    """The minimum sensitivity with which events of this type must be treated."""
    return Sensitivity.PRIVATE if type(payload) in _PRIVATE else Sensitivity.PSEUDONYMOUS
