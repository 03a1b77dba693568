"""What was changed in a session that went through the gateway, and what it would have cost, over HTTP."""

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
    """Calls behind number `after`, oldest first."""

    session_id: str
    after: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=CALLS_MAX)] = 200


class ForwardedCall(msgspec.Struct, frozen=True):
    """Why a call was taken for one of this session, how sure that is, and what was changed in it, or could be.

    Diffs show every letter as x and every digit as 0.
    """

    number: int
    because: str
    confidence: float
    improved: bool
    changes: tuple[Change, ...]


class ForwardedCalls(msgspec.Struct, frozen=True):
    """`more` says whether others come behind."""

    session_id: str
    calls: tuple[ForwardedCall, ...]
    more: bool


async def show_costs(service: Service, request: OneSession) -> Counterfactual:
    def read() -> Counterfactual:
        _check_known(service, request.session_id)
        made = counterfactual(service.log.read(request.session_id), service.models)
        if made is None:
            raise RefusedError(404, "costs_not_found", "nothing of this session went through the gateway at a price")
        return made

    return await asyncio.to_thread(read)


async def show_changes(service: Service, request: ChangesRequest) -> ForwardedCalls:
    def read() -> ForwardedCalls:
        _check_known(service, request.session_id)
        calls = list(islice(_calls(service, request), request.limit + 1))
        return ForwardedCalls(request.session_id, tuple(calls[: request.limit]), len(calls) > request.limit)

    return await asyncio.to_thread(read)


def _calls(service: Service, request: ChangesRequest) -> Iterator[ForwardedCall]:
    payloads = (event.payload for event in service.log.read(request.session_id))
    forwarded = (payload for payload in payloads if isinstance(payload, GatewayForwarded))
    for number, one in enumerate(forwarded, 1):
        if number > request.after:
            yield ForwardedCall(number, one.because, one.confidence, one.improved, one.changes)


def _check_known(service: Service, session_id: str) -> None:
    """Raises RefusedError where there is no such session."""
    if next(service.log.read(session_id), None) is None:
        raise not_found("session", session_id)


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/sessions/{session_id}/gateway/costs",
        show_costs,
        request=OneSession,
        reply=Counterfactual,
        rule="read",
        summary="What a forwarded session cost, and would have cost: improved, under other plans, at the least.",
        refusals=(404,),
    ),
    route(
        "GET",
        "/api/sessions/{session_id}/gateway/changes",
        show_changes,
        request=ChangesRequest,
        reply=ForwardedCalls,
        rule="read",
        summary="A page of the calls of a forwarded session: what was changed in each, or could be, as a masked diff.",
        refusals=(404,),
    ),
)
