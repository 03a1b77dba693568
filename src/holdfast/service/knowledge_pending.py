"""What waits to be adopted of what is known, by new sessions and by those that run, and what that would cost."""

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
"""Of so many sessions, those with the newest activity, it is told whether a newer digest waits for them."""


class PendingSession(msgspec.Struct, frozen=True):
    """Adopting writes `tokens` anew, the digest and all behind it, for `extra_usd` more than reading them."""

    session_id: str
    name: str | None
    model: str
    pending_items: int
    tokens: int
    extra_usd: float | None


class KnowledgePending(msgspec.Struct, frozen=True):
    """`next_text` is the digest as the pages now make it; `digest_change` is null where it is the one that is told."""

    next_text: str
    digest_change: DigestChange | None
    sessions: tuple[PendingSession, ...]


class AdoptionOrdered(msgspec.Struct, frozen=True):
    session_id: str
    effect: str = "from its next turn on the session is told the digest of that time, and writes anew what is behind it"


async def show_pending(service: Service, request: Nothing) -> KnowledgePending:
    text, told = await asyncio.to_thread(_texts, service)
    it = change(told, text)
    sessions = [await _waiting(service, row.id) for row in service.log.sessions(limit=SESSIONS_MAX)]
    return KnowledgePending(
        text,
        DigestChange(it.first_byte, it.bytes_before, it.bytes_after, it.items, it.bytes_changed // 4)
        if text != told
        else None,
        tuple(one for one in sessions if one is not None),
    )


def _texts(service: Service) -> tuple[str, str]:
    """What the pages make, and what is told."""
    if service.workspace is None:
        raise RefusedError(409, "no_workspace", "the service was not started in a project")
    folder = knowledge_folder(service.workspace, service.workspace)
    try:
        return make_digest(all_items(read_pages(folder))).text, read_text(folder.read(DIGEST) or b"")
    except UserError as error:
        raise RefusedError(409, "knowledge_in_use", str(error)) from error


async def _waiting(service: Service, session_id: str) -> PendingSession | None:
    """None where the session is told nothing of what is known, or just what is known now."""
    try:
        calls = await list_calls(service, CallsRequest(session_id, limit=1))
        tokens = _tokens_behind(calls)
        if not tokens:
            return None
        digest = await show_digest(service, DigestQuestion(session_id))
    except RefusedError:
        return None
    if not digest.pending_items:
        return None
    extra = extra_usd(calls.model, tokens, service.models, on=moment(service.clock()).date())
    return PendingSession(session_id, calls.name, calls.model, digest.pending_items, tokens, extra)


def _tokens_behind(calls: Calls) -> int:
    """Of the newest prompt: the layer that is told what is known, and all that comes behind it on the wire."""
    layers = calls.calls[-1].layers if calls.calls else ()
    first = next((number for number, one in enumerate(layers) if one.layer == LAYER), len(layers))
    return sum(one.tokens for one in layers[first:])


def extra_usd(model: str, tokens: int, models: Models, *, on: datetime.date) -> float | None:
    """None for a model that nobody knows the prices of."""
    try:
        price = price_at(find_model(model, models), on, tokens)
    except UserError:
        return None
    return usd(tokens * max(Decimal(0), price.cache_write_5m - price.cache_read) / 1_000_000)


async def adopt(service: Service, request: OneSession) -> AdoptionOrdered:
    """The session is where the digest is taken: it may run anywhere, and looks up what was asked for by itself."""

    def order() -> AdoptionOrdered:
        state = service.cache_states.of(request.session_id)
        if not state.model:
            raise not_found("session", request.session_id)
        if state.heeds != "all":
            raise unheeded("be told another digest")
        service.records.adopt(state.owner)
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
        summary="What waits to be adopted, by new sessions and by those that run, and what that costs.",
        refusals=(409,),
    ),
    route(
        "POST",
        "/api/knowledge/pending/{session_id}/adopt",
        adopt,
        request=OneSession,
        reply=AdoptionOrdered,
        rule="admin",
        summary="Have a session take the newest digest with its next turn.",
        refusals=(404, 409),
    ),
)
