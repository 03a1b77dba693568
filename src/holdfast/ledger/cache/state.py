"""The state of a session's provider cache, folded from the usage that the provider reported."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControlsApplied, CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, ModelSwitched, RequestPrepared
from holdfast.events.payloads.session import EpochOpened, SessionStarted
from holdfast.ledger.cache.verdicts import cached_tokens_after
from holdfast.types.usage import Usage

_FOLDED_PAYLOADS = (
    SessionStarted,
    EpochOpened,
    GatewayForwarded,
    ModelSwitched,
    CacheControlsApplied,
    RequestPrepared,
    LlmCallCompleted,
    CachePinged,
    ExplicitCacheChanged,
)
FOLDED_EVENT_TYPES = tuple(str(kind.__struct_config__.tag) for kind in _FOLDED_PAYLOADS)
"""All others leave the state unchanged."""

# Which cache controls a session applies: one of ours applies all, a wrapped client only the on/off switch, and a client
# behind the gateway none.
Controllable = Literal["all", "caching_only", "none"]


class CacheState(msgspec.Struct, frozen=True):
    """`cached_at` is when the current uninterrupted cached period began; each use moves `expires_at` forward.

    `expires_at` is None where the provider does not state a TTL, or nothing is cached; `has_stated_ttl` tells which.
    Then `gone_at` is when even the longest TTL of the model has passed, so that nothing can be cached any more.
    `ttl` is the one that the last plan requested. `explicit_expires_at` is when an explicit cache expires,
    `explicit_ttl_seconds` the TTL it was last given.
    """

    session_id: str
    model: str = ""
    name: str | None = None
    last_event_id: str | None = None
    cached_at: float | None = None
    expires_at: float | None = None
    tokens_cached: int = 0
    hit_count: int = 0
    calls: int = 0
    usage: Usage = Usage()
    ttl: str | None = None
    sent_at: float = 0.0
    explicit_expires_at: float | None = None
    explicit_ttl_seconds: int | None = None
    prefix_session_id: str | None = None
    controllable: Controllable = "caching_only"
    has_stated_ttl: bool = False
    gone_at: float | None = None

    @property
    def prefix_owner_id(self) -> str:
        """The session whose stable prefix this one starts with: cache controls set for it apply to both."""
        return self.prefix_session_id or self.session_id

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]

    def is_cached(self, at: float) -> bool:
        ends_at = self.gone_at if self.expires_at is None else self.expires_at
        return self.tokens_cached > 0 and (ends_at is None or ends_at > at)


def fold_cache_state(state: CacheState, events: Iterable[Event], models: Models) -> CacheState:
    for event in events:
        state = msgspec.structs.replace(_apply(state, event, models), last_event_id=event.id)
    return state


def _apply(state: CacheState, event: Event, models: Models) -> CacheState:
    change = msgspec.structs.replace
    match event.payload:
        case SessionStarted(model=model, name=name, parent=parent):
            return change(state, model=model, name=name, prefix_session_id=parent.prefix_session_id if parent else None)
        case EpochOpened():
            return change(state, controllable="all")
        case GatewayForwarded():
            return change(state, controllable="none")
        case ModelSwitched(after=after):
            return change(_clear_cache(state), model=after)  # Caches are per model.
        case CacheControlsApplied(reason=reason) if reason:
            return _clear_cache(state)
        case RequestPrepared(plan=plan):
            return change(state, ttl=plan.breakpoints[-1].ttl if plan.breakpoints else None, sent_at=event.at)
        case LlmCallCompleted(usage=usage, model=model, source=source):
            counted = change(
                state,
                model=state.model or model,
                calls=state.calls + 1,
                hit_count=state.hit_count + (usage.cache_read > 0),
                usage=state.usage + usage,
            )
            return _apply_usage(counted, usage, state.sent_at or event.at, models) if source == "provider" else counted
        case CachePinged() as ping if ping.breakpoint_block is not None:
            return _apply_usage(change(state, ttl=ping.ttl), ping.usage, ping.sent_at or event.at, models)
        case ExplicitCacheChanged() as explicit_cache:
            return _apply_explicit_cache(state, explicit_cache, event.at)
        case _:
            return state


def _apply_usage(state: CacheState, usage: Usage, at: float, models: Models) -> CacheState:
    row = find_model_or_none(state.model, models)
    if row is None or not row.supports_prompt_caching:
        return _clear_cache(state)
    # A cache that is written at breakpoints only has a TTL for each of them.
    state = msgspec.structs.replace(state, has_stated_ttl=row.cache.kind == "explicit")
    # While an explicit cache exists its own expiry counts, not the TTL of the implicit one.
    if state.explicit_expires_at is not None and state.explicit_expires_at > at:
        return state
    tokens = cached_tokens_after(usage, row.cache)
    if not tokens:
        return _clear_cache(state)
    # The expiry is known only where we requested a TTL; implicit caches evict whenever the provider likes.
    ttl_seconds = 0
    if state.has_stated_ttl or (state.ttl is not None and row.cache.kind != "implicit"):
        ttl_seconds = row.cache.ttls_seconds.get(state.ttl or "") or min(row.cache.ttls_seconds.values(), default=0)
    longest_ttl_seconds = max(row.cache.ttls_seconds.values(), default=0)
    # A read proves that the entry survived since the last use; a write without a read starts a new period.
    cached_at = state.cached_at if usage.cache_read and state.cached_at is not None else at
    return msgspec.structs.replace(
        state,
        tokens_cached=tokens,
        cached_at=cached_at,
        expires_at=at + ttl_seconds if ttl_seconds else None,
        gone_at=at + longest_ttl_seconds if longest_ttl_seconds else None,
        explicit_expires_at=None,
        explicit_ttl_seconds=None,
    )


def _apply_explicit_cache(state: CacheState, event: ExplicitCacheChanged, at: float) -> CacheState:
    if event.action in ("created", "extended"):
        return msgspec.structs.replace(
            state,
            tokens_cached=event.tokens,
            cached_at=at if event.action == "created" or state.cached_at is None else state.cached_at,
            expires_at=event.expires_at,
            explicit_expires_at=event.expires_at,
            explicit_ttl_seconds=round(event.expires_at - at),
        )
    return _clear_cache(state) if event.action in ("deleted", "lost") else state


def _clear_cache(state: CacheState) -> CacheState:
    return msgspec.structs.replace(
        state,
        tokens_cached=0,
        cached_at=None,
        expires_at=None,
        gone_at=None,
        explicit_expires_at=None,
        explicit_ttl_seconds=None,
    )


class ProviderCacheSummary(msgspec.Struct, frozen=True):
    """What the sessions of a provider sent, and how much of it was read from the cache.

    `ttl_seconds` is the remaining time of the entry that expires last, 0 if there is none; None where the provider does
    not state it.
    `hit_coverage` is the share of calls that read anything at all.
    """

    provider: str
    sessions: int
    tokens_in: int
    tokens_cached: int
    hit_share: float | None
    ttl_seconds: float | None
    hit_coverage: float | None = None


def summarize_providers(states: Iterable[CacheState], at: float) -> tuple[ProviderCacheSummary, ...]:
    """One summary per provider, sorted by name."""
    by_provider: dict[str, list[CacheState]] = {}
    for state in states:
        if state.provider:
            by_provider.setdefault(state.provider, []).append(state)
    return tuple(_summarize(provider, provider_states, at) for provider, provider_states in sorted(by_provider.items()))


def _summarize(provider: str, states: list[CacheState], at: float) -> ProviderCacheSummary:
    tokens_sent = sum(state.usage.tokens_sent for state in states)
    tokens_read = sum(state.usage.cache_read for state in states)
    calls = sum(state.calls for state in states)
    expiring = [(state, state.expires_at) for state in states if state.expires_at is not None]
    states_ttl = any(state.has_stated_ttl for state in states)
    remaining_seconds = [expires_at - at for state, expires_at in expiring if state.is_cached(at)]
    return ProviderCacheSummary(
        provider=provider,
        sessions=len(states),
        tokens_in=tokens_sent,
        tokens_cached=tokens_read,
        # Share of tokens, not of calls: calls differ in size by orders of magnitude.
        hit_share=tokens_read / tokens_sent if tokens_sent else None,
        # How long something is still cached without another call.
        ttl_seconds=max(remaining_seconds, default=0.0) if expiring or states_ttl else None,
        hit_coverage=sum(state.hit_count for state in states) / calls if calls else None,
    )
