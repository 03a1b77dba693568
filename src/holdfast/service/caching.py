"""The cache of each session over HTTP: its state, its controls, and the settings that hold for all."""

import asyncio
import datetime
from typing import Annotated, Literal, get_args

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.errors import UserError
from holdfast.events.controls import HOUR_SECONDS, KEPT_SECONDS_MAX, CacheSettings, SessionControl, TtlSetting
from holdfast.ledger.cache_state import CacheState, Heeds, ProviderSummary, provider_summaries
from holdfast.ledger.verdicts import VerdictKind
from holdfast.providers.giving_up import Way, ways_to_give_up
from holdfast.service.cache_states import KnownCache
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.routes import Nothing, Route, route
from holdfast.service.service import Service
from holdfast.service.times import maybe_moment

LISTED_MAX = 500
SKIPPED_MAX = 1_000_000

ProviderName = Literal["anthropic", "openai", "openai-chat", "gemini", "openrouter", "claude-code"]

Changed = Way | Literal["named_cache"]


class Discussion(msgspec.Struct, frozen=True):
    """The cache of one session; a discussion is a session. `expires_at` is null where the provider decides.

    `heeds` is what the session heeds of what is set here: `switch` is whether it may cache, and no more.
    """

    discussion_id: str
    name: str | None
    model: str
    provider: str
    cached: bool
    cached_at: datetime.datetime | None
    expires_at: datetime.datetime | None
    hit_count: int
    tokens_cached: int
    last_invalidated_at: datetime.datetime | None
    caching_enabled: bool
    ttl: str | None
    calls: int
    tokens_sent: int
    tokens_read: int
    verdict: VerdictKind | None
    verdict_detail: str
    heeds: Heeds


class Discussions(msgspec.Struct, frozen=True):
    """A page of all; `more` says whether others come behind. Providers are of the sessions on this page."""

    providers: tuple[ProviderSummary, ...]
    discussions: tuple[Discussion, ...]
    more: bool


class Invalidated(msgspec.Struct, frozen=True):
    """`changed` is what the next call does otherwise; a provider's memory itself nobody can empty."""

    discussion_id: str
    invalidated_at: datetime.datetime
    generation: int
    changed: tuple[Changed, ...]
    effect: str


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is set for the caches of all sessions; what is not named is as it was at first."""

    providers: dict[ProviderName, bool] = {}
    ttl: TtlSetting = "auto"
    gemini_ttl_seconds: Annotated[int, msgspec.Meta(ge=0, le=KEPT_SECONDS_MAX)] | None = None
    allow_gemini_over_an_hour: bool = False


class OneDiscussion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    discussion_id: str


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 100
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


async def list_states(service: Service, request: Listing) -> Discussions:
    def read() -> Discussions:
        # One more than asked for tells whether there are more.
        found = service.cache_states.newest(limit=request.limit + 1, skip=request.skip)
        listed = found[: request.limit]
        controls, settings = service.records.session_controls(), service.records.settings()
        told = (
            _told(service, known, controls.get(known.state.owner, SessionControl()), settings)
            for known in listed
            if known.state.model
        )
        providers = provider_summaries((known.state for known in listed), service.clock())
        return Discussions(providers, tuple(told), len(found) > len(listed))

    return await asyncio.to_thread(read)


async def show_state(service: Service, request: OneDiscussion) -> Discussion:
    return await asyncio.to_thread(_discussion, service, request.discussion_id)


async def enable(service: Service, request: OneDiscussion) -> Discussion:
    return await asyncio.to_thread(_switched, service, request.discussion_id, enabled=True)


async def disable(service: Service, request: OneDiscussion) -> Discussion:
    return await asyncio.to_thread(_switched, service, request.discussion_id, enabled=False)


async def invalidate(service: Service, request: OneDiscussion) -> Invalidated:
    def change() -> Invalidated:
        state = _state(service, request.discussion_id)
        if state.heeds != "all":
            raise unheeded("give up its cache")
        at = service.clock()
        control = service.records.invalidate(state.owner, at=at)
        changed = what_changes(service, state)
        told = maybe_moment(control.invalidated_at)
        assert told is not None
        return Invalidated(state.session_id, told, control.generation, changed, _effect(changed))

    return await asyncio.to_thread(change)


async def show_settings(service: Service, request: Nothing) -> Settings:
    kept = await asyncio.to_thread(service.records.settings)
    known = {name: kept.providers[name] for name in get_args(ProviderName) if name in kept.providers}
    return Settings(known, kept.ttl, kept.gemini_ttl_seconds, kept.allow_gemini_over_an_hour)


async def set_settings(service: Service, request: Settings) -> Settings:
    seconds = request.gemini_ttl_seconds
    if seconds is not None and seconds > HOUR_SECONDS and not request.allow_gemini_over_an_hour:
        raise RefusedError(
            422,
            "over_an_hour",
            "a Gemini cache of over an hour is paid for by the hour; set allow_gemini_over_an_hour if that is meant",
        )
    providers = {str(name): enabled for name, enabled in request.providers.items()}
    kept = CacheSettings(providers, request.ttl, seconds, request.allow_gemini_over_an_hour)
    await asyncio.to_thread(service.records.set_settings, kept)
    return request


def what_changes(service: Service, state: CacheState) -> tuple[Changed, ...]:
    """By what the next call of the session differs, so that it finds nothing that is cached."""
    try:
        ways = ways_to_give_up(find_model(state.model, service.models))
    except UserError:
        ways = ()
    named: tuple[Changed, ...] = ("named_cache",) if state.kept_until and state.kept_until > service.clock() else ()
    return (*ways, *named)


def _effect(changed: tuple[Changed, ...]) -> str:
    said = {
        "cache_key": "the next turn asks under another cache key",
        "prefix_nonce": "the next turn has another text at the start of its system prompt; tools in front of it stay",
        "named_cache": "before that turn's first call the session deletes what the provider keeps under a name",
    }
    return "; ".join(said[one] for one in changed) or "nothing of ours is cached there"


def _switched(service: Service, session_id: str, *, enabled: bool) -> Discussion:
    state = _state(service, session_id)
    if state.heeds == "nothing":
        raise unheeded("be told whether to cache")
    service.records.enable(state.owner, enabled=enabled)
    return _discussion(service, session_id)


def unheeded(what: str) -> RefusedError:
    message = f"this session's client writes its own requests and cannot {what}; nothing was changed"
    return RefusedError(409, "not_heeded", message)


def _discussion(service: Service, session_id: str) -> Discussion:
    known = service.cache_states.known(_state(service, session_id).session_id)
    controls = service.records.controls(known.state.owner)
    return _told(service, known, controls.session, controls.settings)


def _state(service: Service, session_id: str) -> CacheState:
    state = service.cache_states.of(session_id)
    if not state.model:
        raise not_found("discussion", session_id)
    return state


def _told(service: Service, known: KnownCache, control: SessionControl, settings: CacheSettings) -> Discussion:
    state, verdict = known.state, known.verdict
    cached = state.is_cached(service.clock())
    return Discussion(
        discussion_id=state.session_id,
        name=state.name,
        model=state.model,
        provider=state.provider,
        cached=cached,
        cached_at=maybe_moment(state.cached_at),
        expires_at=maybe_moment(state.expires_at),
        hit_count=state.hit_count,
        tokens_cached=state.tokens_cached if cached else 0,
        last_invalidated_at=maybe_moment(control.invalidated_at),
        caching_enabled=control.caching_enabled and settings.providers.get(state.provider, True),
        ttl=state.ttl,
        calls=state.calls,
        tokens_sent=state.usage.tokens_sent,
        tokens_read=state.usage.cache_read,
        verdict=verdict.kind if verdict else None,
        verdict_detail=verdict.detail if verdict else "",
        heeds=state.heeds,
    )


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/cache",
        list_states,
        request=Listing,
        reply=Discussions,
        rule="read",
        summary="The cache state of every session, newest activity first, and of every provider.",
    ),
    route(
        "GET",
        "/api/cache/settings",
        show_settings,
        request=Nothing,
        reply=Settings,
        rule="read",
        summary="What is set for the caches of all sessions.",
    ),
    route(
        "PUT",
        "/api/cache/settings",
        set_settings,
        request=Settings,
        reply=Settings,
        rule="admin",
        summary="Set it; what is not named is as it was at first.",
    ),
    route(
        "GET",
        "/api/cache/{discussion_id}",
        show_state,
        request=OneDiscussion,
        reply=Discussion,
        rule="read",
        summary="The cache state of one session.",
        refusals=(404,),
    ),
    route(
        "POST",
        "/api/cache/{discussion_id}/invalidate",
        invalidate,
        request=OneDiscussion,
        reply=Invalidated,
        rule="admin",
        summary="Let the next turn find nothing cached.",
        refusals=(404, 409),
    ),
    route(
        "POST",
        "/api/cache/{discussion_id}/disable",
        disable,
        request=OneDiscussion,
        reply=Discussion,
        rule="admin",
        summary="Cache nothing in this session, from its next call on.",
        refusals=(404, 409),
    ),
    route(
        "POST",
        "/api/cache/{discussion_id}/enable",
        enable,
        request=OneDiscussion,
        reply=Discussion,
        rule="admin",
        summary="Cache again in this session.",
        refusals=(404, 409),
    ),
)
