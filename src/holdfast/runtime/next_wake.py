"""The cache state of a session, and when an agent that waits should continue so that the cache is still warm."""

import msgspec

from holdfast.economics.keep_alive import NextWake, plan_wake
from holdfast.engine.conversation import Conversation
from holdfast.engine.model_switch import first_send_rate
from holdfast.engine.state import CompletedCall
from holdfast.ledger.cache.verdicts import cached_tokens_after
from holdfast.providers.adapter import model_capabilities

_RETENTION_FIELD = "prompt_cache_retention"


class SessionCacheState(msgspec.Struct, frozen=True):
    """What the last call left in the cache: its tokens, their TTL since the last use, and when they expire."""

    tokens: int
    ttl_seconds: float
    expires_at: float


def session_cache_state(conversation: Conversation) -> SessionCacheState:
    """Zero tokens if nothing was sent yet, or if the model does not cache."""
    state, model, now = conversation.state, conversation.deps.model, conversation.deps.clock()
    last = state.last_call or CompletedCall(now, None)
    ttl_seconds = _ttl_seconds(conversation, last)
    tokens, expires_at = cached_tokens_after(last.usage, model.cache), last.at + ttl_seconds
    if state.explicit_cache is not None and state.explicit_cache.expires_at > now:
        # An explicit cache has an expiry of its own, which a call does not extend.
        tokens, expires_at = state.explicit_cache.tokens, state.explicit_cache.expires_at
    if not model_capabilities(model).supports_prompt_caching:
        tokens = 0
    return SessionCacheState(tokens, ttl_seconds, expires_at)


def plan_next_wake(conversation: Conversation) -> NextWake:
    """The two times to continue at, from what the last call left in the cache."""
    state, model, now = conversation.state, conversation.deps.model, conversation.deps.clock()
    last = state.last_call or CompletedCall(now, None)
    prompt_tokens = last.usage.tokens_sent + last.usage.output
    price = conversation.price(prompt_tokens)
    cached = session_cache_state(conversation)
    return plan_wake(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached.tokens,
        warm_seconds=cached.expires_at - now,
        read_usd=price.cache_read,
        write_usd=price.cache_write_1h if last.ttl == "1h" else first_send_rate(model, price),
    )


def _ttl_seconds(conversation: Conversation, last: CompletedCall) -> float:
    """The TTL of the last breakpoint, else the one in the session's requests, else the provider's default."""
    ttls = conversation.deps.model.cache.ttls_seconds
    requested = dict(conversation.parameters.extra).get(_RETENTION_FIELD, "").strip('"')
    name = last.ttl or requested or next(iter(ttls), "")
    return ttls.get(name, 0)
