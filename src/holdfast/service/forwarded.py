"""HTTP routes for gateway sessions: the changes made to each request, and what the session would have cost."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec

from holdfast.events.payloads_gateway import Change, GatewayForwarded
from holdfast.replay.forwarded import Counterfactual, counterfactual
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.routes import OneSession, Route, route
from holdfast.service.service import Service

CALLS_MAX = 1_000
NUMBER_MAX = 10**9


class ChangesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls after number `after`, oldest first."""

    session_id: str
    after: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=CALLS_MAX)] = 200


class ForwardedCall(msgspec.Struct, frozen=True):
    """Why a call was matched to this session, with which confidence, and the changes made or possible.

    Diffs are masked: every letter is x, every digit is 0.
    """

    number: int
    because: str
    confidence: float
    improved: bool
    changes: tuple[Change, ...]


class ForwardedCalls(msgspec.Struct, frozen=True):
    """`more` says whether another page follows."""

    session_id: str
    calls: tuple[ForwardedCall, ...]
    more: bool


async def show_costs(context: Service, request: OneSession) -> Counterfactual:
    def read() -> Counterfactual:
        _check_exists(context, request.session_id)
        costs = counterfactual(context.log.read(request.session_id), context.models)
        if costs is None:
            raise RefusedError(404, "costs_not_found", "this session has no priced calls through the gateway")
        return costs

    return await asyncio.to_thread(read)


async def show_changes(context: Service, request: ChangesRequest) -> ForwardedCalls:
    def read() -> ForwardedCalls:
        _check_exists(context, request.session_id)
        calls = list(islice(_calls(context, request), request.limit + 1))
        return ForwardedCalls(request.session_id, tuple(calls[: request.limit]), len(calls) > request.limit)

    return await asyncio.to_thread(read)


def _calls(context: Service, request: ChangesRequest) -> Iterator[ForwardedCall]:
    events = context.log.read(request.session_id)
    forwarded = (event.payload for event in events if isinstance(event.payload, GatewayForwarded))
    for number, payload in enumerate(forwarded, 1):
        if number > request.after:
            yield ForwardedCall(number, payload.because, payload.confidence, payload.improved, payload.changes)


def _check_exists(context: Service, session_id: str) -> None:
    """Raises RefusedError if the session does not exist."""
    if next(context.log.read(session_id), None) is None:
        raise not_found("session", session_id)


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/sessions/{session_id}/gateway/costs",
        show_costs,
        request=OneSession,
        reply=Counterfactual,
        rule="read",
        summary="Cost of a gateway session: actual, rewritten, under other caching policies, and at the optimum.",
        refusals=(404,),
    ),
    route(
        "GET",
        "/api/sessions/{session_id}/gateway/changes",
        show_changes,
        request=ChangesRequest,
        reply=ForwardedCalls,
        rule="read",
        summary="A page of the calls of a gateway session, with the changes made or possible as masked diffs.",
        refusals=(404,),
    ),
)
