"""HTTP routes for cache state, per-session cache controls, and the global cache settings."""

import datetime
from typing import Annotated, Literal, get_args

import msgspec

from holdfast.catalog.lookup import find_model, find_model_or_none, price_at, utc_date
from holdfast.errors import UserError
from holdfast.events.payloads.cache import (
    EXPLICIT_TTL_SECONDS_MAX,
    HOUR_SECONDS,
    CacheSettings,
    SessionControl,
    TtlSetting,
)
from holdfast.ledger.cache.state import CacheState, Controllable, ProviderCacheSummary, summarize_providers
from holdfast.ledger.cache.verdicts import VerdictKind
from holdfast.providers.cache_inputs import InvalidationMethod, invalidation_methods
from holdfast.service.api.analytics import LISTED_MAX, SKIPPED_MAX
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.context import AppContext, SessionCache
from holdfast.service.http.request_parsing import to_optional_datetime
from holdfast.service.http.routes import ApiError, EmptyRequest, Route, copy_fields, json_route, make_not_found_error

_DISCUSSION = "/api/cache/{discussion_id}"
ProviderName = Literal["anthropic", "openai", "openai-chat", "gemini", "openrouter", "claude-code"]
InvalidationChange = InvalidationMethod | Literal["explicit_cache"]


class Discussion(msgspec.Struct, frozen=True):
    """The cache state of one session (a discussion is a session). `title` is as in the list of sessions.

    `expires_at` is null if the provider decides. `ttl` is the one that the last plan asked for, and
    `explicit_ttl_seconds` that of the explicit cache, if there is one.

    `controllable` says which of these controls the session applies; `caching_only` means only enabling and disabling.
    `invalidation_usd` is what writing the cached tokens again would cost above reading them; null without a price.
    """

    discussion_id: str
    title: str
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
    explicit_ttl_seconds: int | None
    calls: int
    tokens_sent: int
    tokens_read: int
    verdict: VerdictKind | None
    verdict_detail: str
    controllable: Controllable
    invalidation_usd: float | None


class Discussions(msgspec.Struct, frozen=True):
    """One page; `more` says whether another follows. `providers` covers the sessions on this page."""

    providers: tuple[ProviderCacheSummary, ...]
    discussions: tuple[Discussion, ...]
    more: bool


class InvalidationResponse(msgspec.Struct, frozen=True):
    """`changed` lists how the next call differs. A provider's cache itself cannot be evicted by a client."""

    discussion_id: str
    invalidated_at: datetime.datetime
    generation: int
    changed: tuple[InvalidationChange, ...]
    effect: str


class CacheSettingsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cache settings for all sessions; fields that are not sent get their default."""

    providers: dict[ProviderName, bool] = {}
    ttl: TtlSetting = "auto"
    gemini_ttl_seconds: Annotated[int, msgspec.Meta(ge=0, le=EXPLICIT_TTL_SECONDS_MAX)] | None = None
    allow_gemini_over_an_hour: bool = False


class DiscussionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    discussion_id: str


class DiscussionsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 100
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


def list_cache_states(context: AppContext, request: DiscussionsRequest) -> Discussions:
    """The cache state of every session, newest activity first, and of every provider."""
    # One extra row shows whether there is another page.
    caches = context.cache_states.list_newest(limit=request.limit + 1, skip=request.skip, simulated=context.simulated)
    page = caches[: request.limit]
    controls, settings = context.records.session_controls(), context.records.settings()
    titles = context.find_titles(cache.state.session_id for cache in page)
    discussions = (
        _discussion_view(
            context,
            cache,
            titles[cache.state.session_id],
            control=controls.get(cache.state.prefix_owner_id, SessionControl()),
            settings=settings,
        )
        for cache in page
        if cache.state.model
    )
    providers = summarize_providers((cache.state for cache in page), context.clock())
    return Discussions(providers, tuple(discussions), len(caches) > len(page))


def get_cache_state(context: AppContext, request: DiscussionRequest) -> Discussion:
    """The cache state of one session."""
    cache = context.cache_states.get_cache(_state(context, request.discussion_id).session_id)
    controls = context.records.controls(cache.state.prefix_owner_id)
    title = context.find_titles((cache.state.session_id,))[cache.state.session_id]
    return _discussion_view(context, cache, title, control=controls.session, settings=controls.settings)


def enable_caching(context: AppContext, request: DiscussionRequest) -> Discussion:
    """Enable caching for this session again."""
    return _set_enabled(context, request, enabled=True)


def disable_caching(context: AppContext, request: DiscussionRequest) -> Discussion:
    """Disable caching for this session, from its next call on."""
    return _set_enabled(context, request, enabled=False)


def invalidate_cache(context: AppContext, request: DiscussionRequest) -> InvalidationResponse:
    """Invalidate the cache: the next turn finds nothing cached."""
    state = _state(context, request.discussion_id)
    if state.controllable != "all":
        raise make_not_controllable_error("invalidate its cache")
    at = context.clock()
    control = context.records.invalidate(state.prefix_owner_id, at=at)
    changed = list_invalidation_changes(context, state)
    invalidated_at = to_optional_datetime(control.invalidated_at)
    assert invalidated_at is not None
    return InvalidationResponse(state.session_id, invalidated_at, control.generation, changed, _effect(changed))


def get_cache_settings(context: AppContext, request: EmptyRequest) -> CacheSettingsBody:
    """The cache settings for all sessions."""
    stored = context.records.settings()
    providers = {name: stored.providers[name] for name in get_args(ProviderName) if name in stored.providers}
    return CacheSettingsBody(providers, stored.ttl, stored.gemini_ttl_seconds, stored.allow_gemini_over_an_hour)


def put_cache_settings(context: AppContext, request: CacheSettingsBody) -> CacheSettingsBody:
    """Replace the cache settings; fields that are not sent get their default."""
    seconds = request.gemini_ttl_seconds
    # Gemini bills explicit caches for storage per hour, so a long TTL needs the user's explicit consent.
    if seconds is not None and seconds > HOUR_SECONDS and not request.allow_gemini_over_an_hour:
        reason = "Gemini bills explicit caches per hour; to allow a TTL over one hour, set allow_gemini_over_an_hour"
        raise ApiError(422, "over_an_hour", reason)
    providers = {str(name): enabled for name, enabled in request.providers.items()}
    settings = CacheSettings(providers, request.ttl, seconds, request.allow_gemini_over_an_hour)
    context.records.set_settings(settings)
    return request


def list_invalidation_changes(context: AppContext, state: CacheState) -> tuple[InvalidationChange, ...]:
    """How the session's next call will differ, so that it finds no cached prefix."""
    try:
        methods = invalidation_methods(find_model(state.model, context.models))
    except UserError:
        methods = ()
    explicit_cache: tuple[InvalidationChange, ...] = (
        ("explicit_cache",) if state.explicit_expires_at and state.explicit_expires_at > context.clock() else ()
    )
    return (*methods, *explicit_cache)


def _effect(changed: tuple[InvalidationChange, ...]) -> str:
    effects = {
        "cache_key": "the next turn uses another cache key",
        "prefix_nonce": "the next turn starts its system prompt with another text; the tools before it stay cached",
        "explicit_cache": "before the next turn's first call, the session deletes its explicit cache at the provider",
    }
    return "; ".join(effects[change] for change in changed) or "nothing of this session is cached there"


def _set_enabled(context: AppContext, request: DiscussionRequest, *, enabled: bool) -> Discussion:
    state = _state(context, request.discussion_id)
    if state.controllable == "none":
        raise make_not_controllable_error("switch caching on or off")
    context.records.set_caching_enabled(state.prefix_owner_id, enabled=enabled)
    return get_cache_state(context, request)


def make_not_controllable_error(what: str) -> ApiError:
    message = f"this session's client writes its own requests, so Holdfast cannot {what}; nothing was changed"
    return ApiError(409, "not_controllable", message)


def _state(context: AppContext, session_id: str) -> CacheState:
    state = context.cache_states.get_state(session_id)
    if not state.model:
        raise make_not_found_error("discussion", session_id)
    return state


def _discussion_view(
    context: AppContext, cache: SessionCache, title: str, *, control: SessionControl, settings: CacheSettings
) -> Discussion:
    state, verdict = cache.state, cache.verdict
    # Tokens of an expired entry are reported as 0: the next call cannot read them.
    cached = state.is_cached(context.clock())
    return copy_fields(
        Discussion,
        state,
        discussion_id=state.session_id,
        title=title,
        cached=cached,
        cached_at=to_optional_datetime(state.cached_at),
        expires_at=to_optional_datetime(state.expires_at),
        tokens_cached=state.tokens_cached if cached else 0,
        last_invalidated_at=to_optional_datetime(control.invalidated_at),
        caching_enabled=control.caching_enabled and settings.providers.get(state.provider, True),
        tokens_sent=state.usage.tokens_sent,
        tokens_read=state.usage.cache_read,
        verdict=verdict.kind if verdict else None,
        verdict_detail=verdict.detail if verdict else "",
        invalidation_usd=_quote_invalidation(context, state) if cached else 0.0,
    )


def _quote_invalidation(context: AppContext, state: CacheState) -> float | None:
    row = find_model_or_none(state.model, context.models)
    if row is None or not row.prices:
        return None
    price = price_at(row, utc_date(context.clock()), state.tokens_cached)
    write = price.cache_write_1h if state.ttl == "1h" else price.cache_write_5m
    # The next call writes what it would have read: tokens * (write - read); rates are per million tokens.
    return to_json_usd(state.tokens_cached * (max(write, price.input) - price.cache_read) / 1_000_000)


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/api/cache", list_cache_states, rule="read"),
    json_route("GET", "/api/cache/settings", get_cache_settings, rule="read"),
    json_route("PUT", "/api/cache/settings", put_cache_settings, rule="admin"),
    json_route("GET", _DISCUSSION, get_cache_state, rule="read", error_statuses=(404,)),
    json_route("POST", f"{_DISCUSSION}/invalidate", invalidate_cache, rule="admin", error_statuses=(404, 409)),
    json_route("POST", f"{_DISCUSSION}/disable", disable_caching, rule="admin", error_statuses=(404, 409)),
    json_route("POST", f"{_DISCUSSION}/enable", enable_caching, rule="admin", error_statuses=(404, 409)),
)
