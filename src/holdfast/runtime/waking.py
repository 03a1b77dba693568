"""What is in the cache for a session, and when its agent should come back if it is about to wait."""

import msgspec

from holdfast.cachemodel.kept import kept_tokens
from holdfast.economics.waiting import NextWake, plan_wake
from holdfast.engine.conversation import Conversation
from holdfast.engine.sent import SentCall
from holdfast.engine.switch import first_rate
from holdfast.providers.capabilities import capabilities_of

_ASKED_LIFETIME = "prompt_cache_retention"


class CacheState(msgspec.Struct, frozen=True):
    """What the last call left in the cache: how many tokens, for how long since they were last used, until when."""

    tokens: int
    lifetime_seconds: float
    expires_at: float


def cached_of(talk: Conversation) -> CacheState:
    """No tokens where nothing was sent yet, or where the model keeps nothing."""
    state, model, now = talk.state, talk.parts.model, talk.parts.clock()
    last = state.last_call or SentCall(now, None)
    lifetime = _lifetime_seconds(talk, last)
    cached, expires_at = kept_tokens(last.usage, model.cache), last.at + lifetime
    if state.kept is not None and state.kept.expires_at > now:
        cached, expires_at = state.kept.tokens, state.kept.expires_at
    if not capabilities_of(model).supports_prompt_caching:
        cached = 0
    return CacheState(cached, lifetime, expires_at)


def wake_of(talk: Conversation) -> NextWake:
    """The two times to come back at, by what the last call left in the cache."""
    state, model, now = talk.state, talk.parts.model, talk.parts.clock()
    last = state.last_call or SentCall(now, None)
    prompt_tokens = last.usage.tokens_sent + last.usage.output
    price = talk.price(prompt_tokens)
    cached = cached_of(talk)
    return plan_wake(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached.tokens,
        warm_seconds=cached.expires_at - now,
        read_usd=price.cache_read,
        write_usd=price.cache_write_1h if last.ttl == "1h" else first_rate(model, price),
    )


def _lifetime_seconds(talk: Conversation, last: SentCall) -> float:
    """That of the last mark, else the one that the session asks for, else the provider's own."""
    lifetimes = talk.parts.model.cache.ttls_seconds
    asked = dict(talk.parameters.extra).get(_ASKED_LIFETIME, "").strip('"')
    name = last.ttl or asked or next(iter(lifetimes), "")
    return lifetimes.get(name, 0)
