"""HTTP routes for pending knowledge: which running sessions use an older digest, and what a refresh would cost."""

import datetime
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models, find_model, price_at
from holdfast.errors import UserError
from holdfast.knowledge.digest import compare_digests
from holdfast.runtime.knowledge import KNOWLEDGE_LAYER, digest_text
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.api.cache import make_not_controllable_error
from holdfast.service.api.knowledge import (
    DigestChange,
    DigestRequest,
    build_next_digest,
    get_digest,
    make_digest_change,
    require_workspace,
    translate_errors,
)
from holdfast.service.api.sessions import CallsRequest, CallsResponse, list_calls
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import to_datetime
from holdfast.service.http.routes import ApiError, EmptyRequest, Route, SessionRequest, json_route, make_not_found_error

SESSIONS_MAX = 12
"""How many of the most recently active sessions are checked for an older digest."""


class PendingSession(msgspec.Struct, frozen=True):
    """A refresh rewrites `tokens` (the digest and everything after it), for `extra_usd` more than reading them."""

    session_id: str
    title: str
    name: str | None
    model: str
    pending_items: int
    tokens: int
    extra_usd: float | None


class PendingKnowledgeResponse(msgspec.Struct, frozen=True):
    """`next_text` is the digest built from the current pages; `digest_change` is null if it equals the one in use."""

    next_text: str
    digest_change: DigestChange | None
    sessions: tuple[PendingSession, ...]


class RefreshResponse(msgspec.Struct, frozen=True):
    session_id: str
    effect: str = "the session uses the newest digest from its next turn on and rewrites everything after it"


def get_pending_knowledge(context: AppContext, request: EmptyRequest) -> PendingKnowledgeResponse:
    """The pending digest, and the running sessions that use an older one, with the cost of a refresh."""
    workspace = require_workspace(context)
    with translate_errors():
        next_text, current_text = build_next_digest(workspace, None), digest_text(workspace, workspace)
    change = make_digest_change(compare_digests(current_text, next_text)) if next_text != current_text else None
    # Each check reads a session's events, hence the small limit.
    sessions = [_pending_session(context, row.id) for row in context.log.sessions(limit=SESSIONS_MAX)]
    return PendingKnowledgeResponse(next_text, change, tuple(session for session in sessions if session is not None))


def _pending_session(context: AppContext, session_id: str) -> PendingSession | None:
    """None if the session has no digest in its prompt, or already the newest one."""
    try:
        calls = list_calls(context, CallsRequest(session_id, limit=1))
        tokens = _tokens_from_digest(calls)
        if not tokens:
            return None
        digest = get_digest(context, DigestRequest(session_id))
    except ApiError:
        return None
    if not digest.pending_items:
        return None
    extra = compute_rewrite_usd(calls.model, tokens, context.models, on=to_datetime(context.clock()).date())
    return PendingSession(session_id, calls.title, calls.name, calls.model, digest.pending_items, tokens, extra)


def _tokens_from_digest(calls: CallsResponse) -> int:
    """Tokens of the newest prompt from the digest layer on, in wire order."""
    layers = calls.calls[-1].layers if calls.calls else ()
    first = next((index for index, layer in enumerate(layers) if layer.layer == KNOWLEDGE_LAYER), len(layers))
    return sum(layer.tokens for layer in layers[first:])


def compute_rewrite_usd(model: str, tokens: int, models: Models, *, on: datetime.date) -> float | None:
    """Cost of rewriting the tokens instead of reading them; None for a model without prices."""
    try:
        price = price_at(find_model(model, models), on, tokens)
    except UserError:
        return None
    # Without the refresh these tokens would be read: the extra cost is the write price minus the read price.
    return to_json_usd(tokens * max(Decimal(0), price.cache_write_5m - price.cache_read) / 1_000_000)


def request_digest_refresh(context: AppContext, request: SessionRequest) -> RefreshResponse:
    """Refresh a session's digest at its next turn.

    Stores the order only: the session may run in any process, and picks it up itself.
    """
    state = context.cache_states.get_state(request.session_id)
    if not state.model:
        raise make_not_found_error("session", request.session_id)
    if state.controllable != "all":
        raise make_not_controllable_error("refresh its digest")
    context.records.request_refresh(state.prefix_owner_id)
    return RefreshResponse(state.session_id)


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/api/knowledge/pending", get_pending_knowledge, rule="admin", error_statuses=(409,)),
    json_route(
        "POST",
        "/api/knowledge/pending/{session_id}/adopt",
        request_digest_refresh,
        rule="admin",
        error_statuses=(404, 409),
    ),
)
