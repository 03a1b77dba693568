"""The live feed: events of all sessions or of one as they are recorded, numbers and no conversation."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec

from holdfast.events.envelope import Event, type_of
from holdfast.events.payloads import (
    AnyPayload,
    CacheKept,
    CachePinged,
    DelegationCompleted,
    LlmCallCompleted,
    LlmCallFailed,
    RequestPrepared,
    SkillLoaded,
    TurnCancelled,
    TurnCompleted,
)
from holdfast.events.payloads_controls import CacheControlled
from holdfast.events.records import Placed
from holdfast.service.failures import RefusedError
from holdfast.service.hub import Dropped, Hub, Quiet
from holdfast.service.routes import EVENT_STREAM, Answer, Route, raw_route
from holdfast.service.service import Service

PLACE_DIGITS_MAX = 18

_SHOWN = (
    CacheControlled,
    CacheKept,
    CachePinged,
    DelegationCompleted,
    LlmCallCompleted,
    LlmCallFailed,
    SkillLoaded,
    TurnCancelled,
    TurnCompleted,
)
"""What holds numbers and names alone. Of all other events it is told that they happened."""

_encode = msgspec.json.Encoder().encode


class Listening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`after` stands in for the header Last-Event-ID, which comes first."""

    session: str | None = None
    after: Annotated[int, msgspec.Meta(ge=0, lt=10**PLACE_DIGITS_MAX)] | None = None


class StreamedEvent(msgspec.Struct, frozen=True):
    id: str
    at: float
    session_id: str
    turn_id: str | None
    type: str
    actor: str
    payload: dict[str, object] | None


async def stream(service: Service, request: Listening, last_event_id: str | None) -> Answer:
    after = request.after
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= PLACE_DIGITS_MAX):
            raise RefusedError(400, "invalid_last_event_id", "Last-Event-ID is the number of an event of this feed")
        after = int(last_event_id)
    return Answer(frames(service.hub, after=after, session_id=request.session), EVENT_STREAM)


async def frames(hub: Hub, *, after: int | None, session_id: str | None) -> AsyncIterator[bytes]:
    """Server-sent events. A dropped one says between which places something is missing."""
    yield b": listening\n\n"
    async with aclosing(hub.listen(after)) as listening:
        async for heard in listening:
            match heard:
                case Dropped(until=last):
                    yield f"id: {last}\nevent: dropped\ndata: {_encode(heard).decode()}\n\n".encode()
                case Quiet():
                    yield b": still here\n\n"
                case Placed(place=place, event=event):
                    if event is not None and session_id in (None, event.session_id):
                        yield frame(place, event)


def frame(place: int, event: Event) -> bytes:
    told = StreamedEvent(
        id=event.id,
        at=event.at,
        session_id=event.session_id,
        turn_id=event.turn_id,
        type=type_of(event.payload),
        actor=event.actor,
        payload=_shown(event.payload),
    )
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (place, told.type.encode(), _encode(told))


def _shown(payload: AnyPayload) -> dict[str, object] | None:
    if isinstance(payload, RequestPrepared):
        marks = [{"piece": mark.piece, "ttl": mark.ttl} for mark in payload.plan.marks]
        return {"body_bytes": payload.body_bytes, "shared_blocks": payload.shared_blocks, "marks": marks}
    if isinstance(payload, _SHOWN):
        shown: dict[str, object] = msgspec.to_builtins(payload)
        return shown
    return None


ROUTES: tuple[Route, ...] = (
    raw_route(
        "/api/cache/stream",
        stream,
        request=Listening,
        rule="read",
        summary="Events as they are recorded, as server-sent events; Last-Event-ID goes on where one left off.",
        content_type=EVENT_STREAM,
    ),
)
