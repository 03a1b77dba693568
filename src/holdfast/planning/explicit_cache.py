"""Whether a prefix is worth an explicit cache (Gemini CachedContent), for how long, and when to delete it."""

from decimal import Decimal

import msgspec

from holdfast.catalog.schema import CacheRules, Price
from holdfast.economics.breakeven import explicit_cache_pays
from holdfast.economics.cost import storage_usd
from holdfast.planning.learned import NO_IMPLICIT_READS, ImplicitReads

# A cache is extended once less than one part in this many of its TTL is left; extending earlier buys idle storage.
EXTEND_BELOW_TTL_SHARE = 4


class ExplicitCacheState(msgspec.Struct, frozen=True):
    """An explicit cache at the provider, valid until `expires_at`; `digest` identifies the cached prefix."""

    name: str
    model: str
    digest: str
    tokens: int
    expires_at: float


class WantedPrefix(msgspec.Struct, frozen=True):
    """The part of the next prompt that does not change within the epoch."""

    model: str
    digest: str
    tokens: int


class ExplicitCacheConfig(msgspec.Struct, frozen=True):
    """The user's settings: TTL of explicit caches (0 turns them off), and whether to create them at any cost."""

    ttl_seconds: int = 3600
    always: bool = False


class SkipCache(msgspec.Struct, frozen=True):
    """Send the request without an explicit cache; `delete` is one that still costs storage and is no longer useful."""

    reason: str
    delete: ExplicitCacheState | None = None


class CreateCache(msgspec.Struct, frozen=True):
    reason: str
    replaces: ExplicitCacheState | None = None


class ExtendCache(msgspec.Struct, frozen=True):
    cache: ExplicitCacheState
    reason: str


class UseCache(msgspec.Struct, frozen=True):
    cache: ExplicitCacheState


ExplicitCacheStep = SkipCache | CreateCache | ExtendCache | UseCache


def plan_explicit_cache(
    cache: ExplicitCacheState | None,
    wanted: WantedPrefix,
    config: ExplicitCacheConfig,
    *,
    rules: CacheRules,
    price: Price,
    uncached_calls: int,
    at: float,
    uncached_seconds: float = 0.0,
    implicit_reads: ImplicitReads = NO_IMPLICIT_READS,
) -> ExplicitCacheStep:
    """What to do with the explicit cache before the next call.

    `uncached_calls` are those that read nothing from the provider's implicit cache, `uncached_seconds` the time between
    the first and the last of them. Only they would get cheaper (docs/decisions/0012): the session is assumed to make as
    many of them again, at the same rate. `implicit_reads` are what the other calls read there.
    """
    served_calls = max(0, uncached_calls - implicit_reads.count_lost_calls(wanted.tokens))
    alive = cache if cache is not None and at < cache.expires_at else None
    fits = alive is not None and (alive.model, alive.digest) == (wanted.model, wanted.digest)
    if config.ttl_seconds <= 0:
        return SkipCache("explicit caches are turned off", delete=alive)
    if not rules.explicit_tokens_min:
        return SkipCache("the model has no explicit caches", delete=alive)
    if wanted.tokens < rules.explicit_tokens_min:
        return SkipCache(f"{wanted.tokens} tokens are below the floor of {rules.explicit_tokens_min}", delete=alive)
    hours = Decimal(config.ttl_seconds) / 3600
    reads = estimate_reads(served_calls, uncached_seconds, config.ttl_seconds)
    if fits and not served_calls and implicit_reads.calls and not config.always:
        return SkipCache("calls that follow soon would read more from the implicit cache", delete=alive)
    if alive is None or not fits:
        if explicit_cache_pays(price, reads_expected=reads, hours=hours) or config.always:
            return CreateCache(_creation_reason(wanted, config, price, uncached_calls), replaces=alive)
        return SkipCache(f"too few reads expected to pay for it: {uncached_calls} uncached calls so far", delete=alive)
    expires_soon = alive.expires_at - at < config.ttl_seconds / EXTEND_BELOW_TTL_SHARE
    extending_pays = explicit_cache_pays(price, reads_expected=reads, hours=hours, made=True)
    if expires_soon and (extending_pays or config.always):
        return ExtendCache(alive, f"{alive.expires_at - at:.0f} s are left of {config.ttl_seconds} s")
    return UseCache(alive)


def estimate_reads(calls: int, seconds: float, ttl_seconds: int) -> Decimal:
    """Expected reads within the TTL: as many as the calls so far, but no more than their rate allows.

    Storage is paid by the hour, and one read an hour does not pay for it.
    """
    if calls < 2 or seconds <= 0:
        return Decimal(calls)
    # n calls span n - 1 intervals, so their rate is (n - 1) / seconds, and a TTL of t sees (n - 1) t / seconds of them.
    return min(Decimal(calls), (calls - 1) * ttl_seconds / Decimal(seconds))


def _creation_reason(wanted: WantedPrefix, config: ExplicitCacheConfig, price: Price, uncached_calls: int) -> str:
    storage = storage_usd(wanted.tokens, config.ttl_seconds, price)
    creation = wanted.tokens * price.input / 1_000_000
    saved_per_read = wanted.tokens * (price.input - price.cache_read) / 1_000_000
    return (
        f"{wanted.tokens} tokens for ${creation:.6f} and ${storage:.6f} of storage; each read saves "
        f"${saved_per_read:.6f}, and as many reads are expected as there were uncached calls ({uncached_calls})"
    )
