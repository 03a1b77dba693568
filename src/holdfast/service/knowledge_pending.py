"""HTTP routes for pending knowledge: which running sessions use an older digest, and what a refresh would cost."""

import asyncio
import datetime
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models, find_model, price_at
from holdfast.errors import UserError
from holdfast.knowledge.digest import change, make_digest
from holdfast.knowledge.folder import DIGEST, knowledge_folder
from holdfast.knowledge.harvest import read_pages
from holdfast.knowledge.pages import all_items
from holdfast.runtime.knowing import LAYER
from holdfast.service.caching import unheeded
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.knowledge import DigestChange, DigestQuestion, show_digest
from holdfast.service.routes import Nothing, OneSession, Route, route
from holdfast.service.service import Service
from holdfast.service.session_routes import Calls, CallsRequest, list_calls
from holdfast.service.sums import usd
from holdfast.service.times import moment
from holdfast.sources.text import read_text

SESSIONS_MAX = 12
"""How many of the most recently active sessions are checked for an older digest."""


class PendingSession(msgspec.Struct, frozen=True):
    """A refresh rewrites `tokens` (the digest and everything after it), for `extra_usd` more than reading them."""

    session_id: str
    name: str | None
    model: str
    pending_items: int
    tokens: int
    extra_usd: float | None


class KnowledgePending(msgspec.Struct, frozen=True):
    """`next_text` is the digest built from the current pages; `digest_change` is null if it equals the one in use."""

    next_text: str
    digest_change: DigestChange | None
    sessions: tuple[PendingSession, ...]


class AdoptionOrdered(msgspec.Struct, frozen=True):
    session_id: str
    effect: str = "the session uses the newest digest from its next turn on and rewrites everything after it"


async def show_pending(context: Service, request: Nothing) -> KnowledgePending:
    next_text, current_text = await asyncio.to_thread(_texts, context)
    diff = change(current_text, next_text)
    # Each check reads a session's events, hence the small limit.
    sessions = [await _pending_session(context, row.id) for row in context.log.sessions(limit=SESSIONS_MAX)]
    return KnowledgePending(
        next_text,
        DigestChange(diff.first_byte, diff.bytes_before, diff.bytes_after, diff.items, diff.bytes_changed // 4)
        if next_text != current_text
        else None,
        tuple(session for session in sessions if session is not None),
    )


def _texts(context: Service) -> tuple[str, str]:
    """The digest built from the current pages, and the one in use."""
    if context.workspace is None:
        raise RefusedError(409, "no_workspace", "the service was not started in a project folder")
    folder = knowledge_folder(context.workspace, context.workspace)
    try:
        return make_digest(all_items(read_pages(folder))).text, read_text(folder.read(DIGEST) or b"")
    except UserError as error:
        raise RefusedError(409, "knowledge_in_use", str(error)) from error


async def _pending_session(context: Service, session_id: str) -> PendingSession | None:
    """None if the session has no digest in its prompt, or already the newest one."""
    try:
        calls = await list_calls(context, CallsRequest(session_id, limit=1))
        tokens = _tokens_from_digest(calls)
        if not tokens:
            return None
        digest = await show_digest(context, DigestQuestion(session_id))
    except RefusedError:
        return None
    if not digest.pending_items:
        return None
    extra = extra_usd(calls.model, tokens, context.models, on=moment(context.clock()).date())
    return PendingSession(session_id, calls.name, calls.model, digest.pending_items, tokens, extra)


def _tokens_from_digest(calls: Calls) -> int:
    """Tokens of the newest prompt from the digest layer on, in wire order."""
    layers = calls.calls[-1].layers if calls.calls else ()
    first = next((index for index, layer in enumerate(layers) if layer.layer == LAYER), len(layers))
    return sum(layer.tokens for layer in layers[first:])


def extra_usd(model: str, tokens: int, models: Models, *, on: datetime.date) -> float | None:
    """Cost of rewriting the tokens instead of reading them; None for a model without prices."""
    try:
        price = price_at(find_model(model, models), on, tokens)
    except UserError:
        return None
    # Without the refresh these tokens would be read: the extra cost is the write price minus the read price.
    return usd(tokens * max(Decimal(0), price.cache_write_5m - price.cache_read) / 1_000_000)


async def adopt(context: Service, request: OneSession) -> AdoptionOrdered:
    """Stores the order only: the session may run in any process, and picks it up itself."""

    def order() -> AdoptionOrdered:
        state = context.cache_states.of(request.session_id)
        if not state.model:
            raise not_found("session", request.session_id)
        if state.heeds != "all":
            raise unheeded("refresh its digest")
        context.records.adopt(state.owner)
        return AdoptionOrdered(state.session_id)

    return await asyncio.to_thread(order)


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/knowledge/pending",
        show_pending,
        request=Nothing,
        reply=KnowledgePending,
        rule="admin",
        summary="The pending digest, and the running sessions that use an older one, with the cost of a refresh.",
        refusals=(409,),
    ),
    route(
        "POST",
        "/api/knowledge/pending/{session_id}/adopt",
        adopt,
        request=OneSession,
        reply=AdoptionOrdered,
        rule="admin",
        summary="Refresh a session's digest at its next turn.",
        refusals=(404, 409),
    ),
)
