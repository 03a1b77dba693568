"""The live feed: events of all sessions or of one as server-sent events, without message content."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec

from holdfast.events.log import Event, event_type_of
from holdfast.events.payloads.cache import CacheControlsApplied, CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, RequestPrepared
from holdfast.events.payloads.session import DelegationCompleted, SkillLoaded, SkillUsed, TurnCancelled, TurnCompleted
from holdfast.events.payloads.union import AnyPayload
from holdfast.events.records import KeyRow, PositionedEvent
from holdfast.service.auth.keys import get_key_state
from holdfast.service.context import AppContext
from holdfast.service.http.routes import (
    EVENT_STREAM,
    ApiError,
    Route,
    RouteRequest,
    RouteResponse,
    copy_fields,
    raw_route,
)
from holdfast.service.live.hub import NoEvents, SkippedEvents

POSITION_DIGITS_MAX = 18

KEY_CHECK_SECONDS = 10.0
"""For so long after a feed's key was checked, events are sent without checking it again."""

_WITH_PAYLOAD = (
    CacheControlsApplied,
    ExplicitCacheChanged,
    CachePinged,
    DelegationCompleted,
    LlmCallCompleted,
    LlmCallFailed,
    SkillLoaded,
    SkillUsed,
    TurnCancelled,
    TurnCompleted,
)
"""Payloads that hold only numbers and names. All other events are sent without their payload."""

_encode = msgspec.json.Encoder().encode


class StreamRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`after` is used if there is no Last-Event-ID header."""

    session: str | None = None
    after: Annotated[int, msgspec.Meta(ge=0, lt=10**POSITION_DIGITS_MAX)] | None = None


class StreamedEvent(msgspec.Struct, frozen=True):
    id: str
    at: float
    session_id: str
    turn_id: str | None
    type: str
    actor: str
    payload: dict[str, object] | None


async def stream_events(context: AppContext, request: StreamRequest, incoming: RouteRequest) -> RouteResponse:
    """Events as server-sent events while they are recorded; Last-Event-ID resumes after that event."""
    after = request.after
    last_event_id = incoming.last_event_id
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= POSITION_DIGITS_MAX):
            raise ApiError(400, "invalid_last_event_id", "Last-Event-ID must be an event number of this feed")
        after = int(last_event_id)
    frames = iterate_sse_frames(context, incoming.key, after=after, session_id=request.session)
    return RouteResponse(frames, EVENT_STREAM)


async def iterate_sse_frames(
    context: AppContext, key: KeyRow | None, *, after: int | None, session_id: str | None
) -> AsyncIterator[bytes]:
    """Server-sent events, until the key is not accepted any more.

    A `dropped` event names the range of positions that was skipped.
    """
    # A comment at once, so that proxies and EventSource see the response start.
    yield b": listening\n\n"
    checked_at = context.clock()
    async with aclosing(context.hub.listen(after)) as items:
        async for item in items:
            # A feed stays open for hours, so it would outlive its key.
            if isinstance(item, NoEvents) or context.clock() - checked_at >= KEY_CHECK_SECONDS:
                if not await _is_accepted(context, key):
                    return
                checked_at = context.clock()
            match item:
                case SkippedEvents(until=last):
                    yield f"id: {last}\nevent: dropped\ndata: {_encode(item).decode()}\n\n".encode()
                case NoEvents():
                    yield b": still here\n\n"
                case PositionedEvent(position=position, event=event):
                    if event is not None and session_id in (None, event.session_id):
                        yield encode_sse_frame(position, event)


async def _is_accepted(context: AppContext, key: KeyRow | None) -> bool:
    if key is None:
        return not await context.needs_keys()
    stored = await asyncio.to_thread(context.records.key, key.id)
    return stored is not None and get_key_state(stored, context.clock()) == "usable"


def encode_sse_frame(position: int, event: Event) -> bytes:
    payload = event.payload
    streamed = copy_fields(StreamedEvent, event, type=event_type_of(payload), payload=_public_payload(payload))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (position, streamed.type.encode(), _encode(streamed))


def _public_payload(payload: AnyPayload) -> dict[str, object] | None:
    if isinstance(payload, RequestPrepared):
        breakpoints = [
            {"block": breakpoint_.block_index, "ttl": breakpoint_.ttl} for breakpoint_ in payload.plan.breakpoints
        ]
        return {"body_bytes": payload.body_bytes, "shared_blocks": payload.shared_blocks, "breakpoints": breakpoints}
    if isinstance(payload, _WITH_PAYLOAD):
        fields: dict[str, object] = msgspec.to_builtins(payload)
        return fields
    return None


ROUTES: tuple[Route, ...] = (raw_route("/api/cache/stream", stream_events, rule="read", content_type=EVENT_STREAM),)
