"""What a provider keeps of a session by what it last reported: a fold that takes one event after the other."""

from collections.abc import Iterable

import msgspec

from holdfast.cachemodel.kept import kept_tokens
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model
from holdfast.errors import UserError
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    CacheKept,
    CachePinged,
    LlmCallCompleted,
    ModelSwitched,
    RequestPrepared,
    SessionStarted,
)
from holdfast.events.payloads_controls import CacheControlled


class CacheState(msgspec.Struct, frozen=True):
    """`cached_at` is since when something has been kept without a break, `expires_at` slides with each use.

    `expires_at` is None where the provider does not say how long it keeps what. `ttl` is the lifetime that the last
    plan asked for.
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
    kept_until: float | None = None
    head_session_id: str | None = None

    @property
    def owner(self) -> str:
        """The session whose head this one begins with: what is set for its cache holds for both."""
        return self.head_session_id or self.session_id

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]

    def is_cached(self, at: float) -> bool:
        return self.tokens_cached > 0 and (self.expires_at is None or self.expires_at > at)


def fold_cache(state: CacheState, events: Iterable[Event], models: Models) -> CacheState:
    """The state after some more events."""
    for event in events:
        state = msgspec.structs.replace(_apply(state, event, models), last_event_id=event.id)
    return state


def _apply(state: CacheState, event: Event, models: Models) -> CacheState:
    change = msgspec.structs.replace
    match event.payload:
        case SessionStarted(model=model, name=name, parent=parent):
            return change(state, model=model, name=name, head_session_id=parent.head_session_id if parent else None)
        case ModelSwitched(after=after):
            return change(_emptied(state), model=after)
        case CacheControlled(reason=reason) if reason:
            return _emptied(state)
        case RequestPrepared(plan=plan):
            return change(state, ttl=plan.marks[-1].ttl if plan.marks else None, sent_at=event.at)
        case LlmCallCompleted(usage=usage, model=model):
            seen = change(
                state,
                model=state.model or model,
                calls=state.calls + 1,
                hit_count=state.hit_count + (usage.cache_read > 0),
                usage=state.usage + usage,
            )
            return _used(seen, usage, state.sent_at or event.at, models)
        case CachePinged(piece=piece) as ping if piece is not None:
            return _used(change(state, ttl=ping.ttl), ping.usage, ping.sent_at or event.at, models)
        case CacheKept() as kept:
            return _kept(state, kept, event.at)
        case _:
            return state


def _used(state: CacheState, usage: Usage, at: float, models: Models) -> CacheState:
    row = _row_of(state.model, models)
    if row is None or not row.supports_prompt_caching:
        return _emptied(state)
    if state.kept_until is not None and state.kept_until > at:
        return state
    tokens = kept_tokens(usage, row.cache)
    if not tokens:
        return _emptied(state)
    lifetime = row.cache.ttls_seconds.get(state.ttl or "") or min(row.cache.ttls_seconds.values(), default=0)
    # Only where a lifetime was asked for is it known when it ends.
    known = lifetime if state.ttl is not None and row.cache.kind != "implicit" else 0
    unbroken = state.cached_at if usage.cache_read and state.cached_at is not None else at
    return msgspec.structs.replace(
        state,
        tokens_cached=tokens,
        cached_at=unbroken,
        expires_at=at + known if known else None,
        kept_until=None,
    )


def _row_of(name: str, models: Models) -> Model | None:
    try:
        return find_model(name, models)
    except UserError:
        return None


def _kept(state: CacheState, kept: CacheKept, at: float) -> CacheState:
    if kept.action in ("created", "extended"):
        return msgspec.structs.replace(
            state,
            tokens_cached=kept.tokens,
            cached_at=at if kept.action == "created" or state.cached_at is None else state.cached_at,
            expires_at=kept.expires_at,
            kept_until=kept.expires_at,
        )
    return _emptied(state) if kept.action in ("deleted", "lost") else state


def _emptied(state: CacheState) -> CacheState:
    return msgspec.structs.replace(state, tokens_cached=0, cached_at=None, expires_at=None, kept_until=None)


class ProviderSummary(msgspec.Struct, frozen=True):
    """What the sessions of a provider have sent, and how much of it was read from its cache.

    `ttl_seconds` is what is left of the entry that lapses last; None where the provider manages that itself.
    `hit_coverage` is the share of calls that read anything at all.
    """

    provider: str
    sessions: int
    tokens_in: int
    tokens_cached: int
    hit_share: float | None
    ttl_seconds: float | None
    hit_coverage: float | None = None


def provider_summaries(states: Iterable[CacheState], at: float) -> tuple[ProviderSummary, ...]:
    """One row a provider, by name."""
    by_provider: dict[str, list[CacheState]] = {}
    for state in states:
        if state.provider:
            by_provider.setdefault(state.provider, []).append(state)
    return tuple(_stats(provider, some, at) for provider, some in sorted(by_provider.items()))


def _stats(provider: str, states: list[CacheState], at: float) -> ProviderSummary:
    sent = sum(state.usage.tokens_sent for state in states)
    read = sum(state.usage.cache_read for state in states)
    calls = sum(state.calls for state in states)
    left = [state.expires_at - at for state in states if state.expires_at is not None and state.is_cached(at)]
    known = any(state.expires_at is not None for state in states)
    return ProviderSummary(
        provider=provider,
        sessions=len(states),
        tokens_in=sent,
        tokens_cached=read,
        hit_share=read / sent if sent else None,
        ttl_seconds=max(left, default=0.0) if known else None,
        hit_coverage=sum(state.hit_count for state in states) / calls if calls else None,
    )
