"""HTTP routes for gateway sessions: the changes made to each request, and what the session would have cost."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec

from holdfast.events.payloads.calls import GatewayForwarded, RequestChange
from holdfast.replay.audit import PriceLookup
from holdfast.replay.counterfactual import Counterfactual, estimate_counterfactual
from holdfast.service.context import AppContext
from holdfast.service.http.routes import ApiError, Route, SessionRequest, json_route, make_not_found_error

_GATEWAY = "/api/sessions/{session_id}/gateway"
CALLS_MAX = 1_000
NUMBER_MAX = 10**9


class ChangesRequest(SessionRequest, frozen=True):
    """Calls after number `after`, oldest first."""

    after: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=CALLS_MAX)] = 200


class ForwardedCall(msgspec.Struct, frozen=True):
    """Why a call was matched to this session, with which confidence, and the changes made or possible.

    Diffs are masked: every letter is x, every digit is 0.
    """

    number: int
    reason: str
    confidence: float
    rewritten: bool
    changes: tuple[RequestChange, ...]


class ForwardedCalls(msgspec.Struct, frozen=True):
    """`more` says whether another page follows."""

    session_id: str
    calls: tuple[ForwardedCall, ...]
    more: bool


def get_gateway_costs(context: AppContext, request: SessionRequest) -> Counterfactual:
    """Cost of a gateway session: without and with the rewrite, under other caching policies, and at the optimum."""
    _check_exists(context, request.session_id)
    prices = PriceLookup(context.models)
    costs = estimate_counterfactual(context.log.read(request.session_id), request.session_id, prices)
    if costs is None:
        raise ApiError(404, "costs_not_found", "this session has no priced calls through the gateway")
    return costs


def list_gateway_changes(context: AppContext, request: ChangesRequest) -> ForwardedCalls:
    """A page of the calls of a gateway session, with the changes made or possible as masked diffs."""
    _check_exists(context, request.session_id)
    calls = list(islice(_calls(context, request), request.limit + 1))
    return ForwardedCalls(request.session_id, tuple(calls[: request.limit]), len(calls) > request.limit)


def _calls(context: AppContext, request: ChangesRequest) -> Iterator[ForwardedCall]:
    events = context.log.read(request.session_id)
    forwarded = (event.payload for event in events if isinstance(event.payload, GatewayForwarded))
    for number, payload in enumerate(forwarded, 1):
        if number > request.after:
            yield ForwardedCall(number, payload.reason, payload.confidence, payload.is_improved, payload.changes)


def _check_exists(context: AppContext, session_id: str) -> None:
    """Raises ApiError if the session does not exist."""
    if next(context.log.read(session_id), None) is None:
        raise make_not_found_error("session", session_id)


ROUTES: tuple[Route, ...] = (
    json_route("GET", f"{_GATEWAY}/costs", get_gateway_costs, rule="read", error_statuses=(404,)),
    json_route("GET", f"{_GATEWAY}/changes", list_gateway_changes, rule="read", error_statuses=(404,)),
)
