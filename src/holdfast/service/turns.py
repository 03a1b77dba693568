"""One turn, event by event: times, event types and message sizes, without message content."""

from collections.abc import Sequence

import msgspec

from holdfast.events.envelope import Event, type_of
from holdfast.events.payloads import MessageAppended, TurnCancelled, TurnCompleted


class TurnEvent(msgspec.Struct, frozen=True):
    id: str
    at: float
    type: str
    actor: str


class SaidBlock(msgspec.Struct, frozen=True):
    type: str
    bytes: int


class SaidMessage(msgspec.Struct, frozen=True):
    role: str
    blocks: tuple[SaidBlock, ...]


class Turn(msgspec.Struct, frozen=True):
    turn_id: str
    session_id: str
    in_flight: bool
    events: tuple[TurnEvent, ...]
    messages: tuple[SaidMessage, ...]


def turn_of(turn_id: str, session_id: str, events: Sequence[Event]) -> Turn:
    turn_events = [event for event in events if event.turn_id == turn_id]
    return Turn(
        turn_id=turn_id,
        session_id=session_id,
        in_flight=not any(isinstance(event.payload, TurnCompleted | TurnCancelled) for event in turn_events),
        events=tuple(TurnEvent(event.id, event.at, type_of(event.payload), event.actor) for event in turn_events),
        messages=tuple(
            _message_sizes(event.payload) for event in turn_events if isinstance(event.payload, MessageAppended)
        ),
    )


def _message_sizes(appended: MessageAppended) -> SaidMessage:
    blocks = (
        SaidBlock(type(block).__name__.lower(), len(msgspec.json.encode(block))) for block in appended.message.content
    )
    return SaidMessage(appended.message.role, tuple(blocks))
