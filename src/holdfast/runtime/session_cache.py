"""`session.cache`: what the provider has cached of a session, how well that worked, and when to continue."""

from collections.abc import Callable

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.economics.keep_alive import NextWake, plan_wake
from holdfast.engine.conversation import Conversation
from holdfast.engine.model_switch import first_send_rate
from holdfast.engine.state import CompletedCall
from holdfast.ledger.cache.prompt_cache import CacheStatsState, PromptCacheStats, TokenStats, fold_cache_stats
from holdfast.ledger.cache.verdicts import cached_tokens_after
from holdfast.providers.adapter import model_capabilities

_RETENTION_FIELD = "prompt_cache_retention"


class SessionCacheState(msgspec.Struct, frozen=True):
    """What the last call left in the cache: its tokens, their TTL since the last use, and when they expire."""

    tokens: int
    ttl_seconds: float
    expires_at: float


class OpenSessionCache:
    """The cache of an open session. Every method raises UserError if the session is not open."""

    def __init__(self, open_conversation: Callable[[], Conversation], load_models: Callable[[], Models]) -> None:
        self._open_conversation = open_conversation
        self._load_models = load_models
        self._stats = CacheStatsState()

    def state(self) -> SessionCacheState:
        """What the provider has cached of this session, by the usage it last reported, pings included.

        Zero tokens if nothing was sent yet, or if the model does not cache.
        """
        conversation = self._open_conversation()
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

    def next_wake(self) -> NextWake:
        """When an agent that is about to wait should continue: while the cache is warm or after, with both prices."""
        conversation, cached = self._open_conversation(), self.state()
        now = conversation.deps.clock()
        last = conversation.state.last_call or CompletedCall(now, None)
        prompt_tokens = last.usage.tokens_sent + last.usage.output
        price = conversation.price(prompt_tokens)
        write_usd = price.cache_write_1h if last.ttl == "1h" else first_send_rate(conversation.deps.model, price)
        return plan_wake(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached.tokens,
            warm_seconds=cached.expires_at - now,
            read_usd=price.cache_read,
            write_usd=write_usd,
        )

    def stats(self) -> PromptCacheStats:
        """Cache statistics of this session so far: requests, hits, breaks, tokens read and written."""
        return self._fold_new_events().stats

    def get_token_stats(self) -> dict[str, TokenStats]:
        """For each provider used: tokens sent, how many of these were read from its cache, and tokens received."""
        return dict(self._fold_new_events().tokens)

    def _fold_new_events(self) -> CacheStatsState:
        conversation = self._open_conversation()
        newer = conversation.deps.log.read(conversation.state.session_id, after=self._stats.last_event_id)
        self._stats = fold_cache_stats(self._stats, newer, self._load_models())
        return self._stats


def _ttl_seconds(conversation: Conversation, last: CompletedCall) -> float:
    """The TTL of the last breakpoint, else the one in the session's requests, else the provider's default."""
    ttls = conversation.deps.model.cache.ttls_seconds
    requested = dict(conversation.parameters.extra).get(_RETENTION_FIELD, "").strip('"')
    name = last.ttl or requested or next(iter(ttls), "")
    return ttls.get(name, 0)
