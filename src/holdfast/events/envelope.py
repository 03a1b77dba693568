"""The event envelope: who, when, in which session and turn, and the payload."""

import enum
from typing import Literal

import msgspec

from holdfast.events.payloads import (
    AnyPayload,
    ContextInjected,
    EpochOpened,
    LlmCallStarted,
    MemoryEviction,
    MemoryUpdated,
    MessageAppended,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
    TurnStarted,
)
from holdfast.events.payloads_compaction import ContextCompacted
from holdfast.events.payloads_recovery import Mending, Recovery

SCHEMA_VERSION = 1

Actor = Literal["user", "agent", "system", "tool", "worker"]


class Sensitivity(enum.StrEnum):
    PRIVATE = "private"
    PSEUDONYMOUS = "pseudonymous"


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


# Payloads that contain conversation content, or can.
_PRIVATE: frozenset[type[msgspec.Struct]] = frozenset(
    (
        ContextCompacted,
        ContextInjected,
        EpochOpened,
        LlmCallStarted,
        MemoryEviction,
        MemoryUpdated,
        Mending,
        MessageAppended,
        Recovery,
        ToolCalled,
        ToolCompleted,
        ToolConfirmationRequested,
        ToolConfirmationResolved,
        ToolFailed,
        TurnStarted,
    )
)


def type_of(payload: AnyPayload) -> str:
    """The event's type, such as `turn.started`."""
    tag = type(payload).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def sensitivity_of(payload: AnyPayload) -> Sensitivity:
    """The minimum sensitivity with which events of this type must be treated."""
    return Sensitivity.PRIVATE if type(payload) in _PRIVATE else Sensitivity.PSEUDONYMOUS
