"""Whether a prefix is worth keeping under a name, for how long, and when to let it go."""

from decimal import Decimal

import msgspec

from holdfast.catalog.rows import CacheRules, Price
from holdfast.economics.breakeven import named_cache_pays
from holdfast.economics.cost import storage_usd

EXTENDED_BELOW_SHARE = 4
"""A cache is extended once less than this part of its lifetime, one in so many, is left."""


class KeptPrefix(msgspec.Struct, frozen=True):
    """A prefix that the provider keeps under a name until `expires_at`; `digest` says which prefix it is."""

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


class Keeping(msgspec.Struct, frozen=True):
    """How caches are to be kept: for how long, where 0 is not at all, and whatever it costs if `always`."""

    ttl_seconds: int = 3600
    always: bool = False


class LeaveOut(msgspec.Struct, frozen=True):
    """No cache is named in the request. One that there is shall be deleted: it is paid for and of no use."""

    reason: str
    delete: KeptPrefix | None = None


class Create(msgspec.Struct, frozen=True):
    reason: str
    instead_of: KeptPrefix | None = None


class Extend(msgspec.Struct, frozen=True):
    kept: KeptPrefix
    reason: str


class Use(msgspec.Struct, frozen=True):
    kept: KeptPrefix


CacheStep = LeaveOut | Create | Extend | Use


def plan_keeping(
    kept: KeptPrefix | None,
    wanted: WantedPrefix,
    keeping: Keeping,
    *,
    rules: CacheRules,
    price: Price,
    uncached_calls: int,
    at: float,
    uncached_seconds: float = 0.0,
) -> CacheStep:
    """What to do with the named cache before the next call.

    Calls that read the prefix from the cache that the provider keeps of itself would save nothing. A session that has
    made so many others is taken to make as many of them again, as fast as it did: that is all anyone knows of it.
    `uncached_seconds` lie between the first and the last of them.
    """
    alive = kept if kept is not None and at < kept.expires_at else None
    fits = alive is not None and (alive.model, alive.digest) == (wanted.model, wanted.digest)
    if keeping.ttl_seconds <= 0:
        return LeaveOut("keeping caches is turned off", delete=alive)
    if not rules.explicit_tokens_min:
        return LeaveOut("the model takes no named caches", delete=alive)
    if wanted.tokens < rules.explicit_tokens_min:
        return LeaveOut(f"{wanted.tokens} tokens are below the floor of {rules.explicit_tokens_min}", delete=alive)
    hours = Decimal(keeping.ttl_seconds) / 3600
    reads = reads_expected(uncached_calls, uncached_seconds, keeping.ttl_seconds)
    if alive is None or not fits:
        if named_cache_pays(price, reads_expected=reads, hours=hours) or keeping.always:
            return Create(_why_created(wanted, keeping, price, uncached_calls), instead_of=alive)
        return LeaveOut(
            f"{uncached_calls} uncached calls so far do not promise enough reads to pay for it", delete=alive
        )
    lapses_soon = alive.expires_at - at < keeping.ttl_seconds / EXTENDED_BELOW_SHARE
    extending_pays = named_cache_pays(price, reads_expected=reads, hours=hours, made=True)
    if lapses_soon and (extending_pays or keeping.always):
        return Extend(alive, f"{alive.expires_at - at:.0f} s are left of {keeping.ttl_seconds} s")
    return Use(alive)


def reads_expected(calls: int, seconds: float, ttl_seconds: int) -> Decimal:
    """How many calls will come while a cache is kept: as many as came, but no more than their rhythm has room for."""
    if calls < 2 or seconds <= 0:
        return Decimal(calls)
    return min(Decimal(calls), (calls - 1) * ttl_seconds / Decimal(seconds))


def _why_created(wanted: WantedPrefix, keeping: Keeping, price: Price, uncached_calls: int) -> str:
    stored = storage_usd(wanted.tokens, keeping.ttl_seconds, price)
    made = wanted.tokens * price.input / 1_000_000
    saved = wanted.tokens * (price.input - price.cache_read) / 1_000_000
    return (
        f"{wanted.tokens} tokens for ${made:.6f} and ${stored:.6f} of storage; each read saves ${saved:.6f}, and "
        f"{uncached_calls} uncached calls so far promise as many reads"
    )
