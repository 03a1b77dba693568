"""Break-even comparisons between two ways to cache: a 1-hour anchor, a 1-hour prompt, an explicit cache.

Costs are in units of one uncached input token: a cache read costs `r`, a cache write `w`, both taken from the price's
multipliers. Each function compares the option in its name with not taking it, and is truthy if the option is cheaper.
"""

from decimal import Decimal

import msgspec

from holdfast.catalog.rows import Price
from holdfast.economics.comparison import Amount, Comparison, exact
from holdfast.economics.cost import Multipliers

_ONE = Decimal(1)


class GapShares(msgspec.Struct, frozen=True):
    """Probabilities that the next idle time is at most 5 minutes, at most an hour, or longer.

    Whatever is missing to 1 is the probability that the session never makes another call.
    """

    short: Amount
    middle: Amount
    long: Amount


def anchor_pays(
    kept_tokens: int, written_tokens: int, shares: GapShares, *, upgrade_probability: Amount, times: Multipliers
) -> Comparison:
    """Compare a 1-hour breakpoint on the last block, after a prefix cached for 5 minutes, with 5 minutes throughout."""
    short, middle, long = exact(shares.short), exact(shares.middle), exact(shares.long)
    belief = exact(upgrade_probability)
    # n = written_tokens (this call writes them either way), T = kept_tokens (no longer-lived entry covers them yet),
    # s, m, l = idle-time probabilities, p = probability that a 1-hour write extends the TTL of the prefix before it.
    #   anchor:    w1 n + (s r + m (p r + (1 - p) w5) + l w5) T
    #   5 minutes: w5 n + (s r + (m + l) w5) T
    # After an idle time of 5 to 60 minutes the anchor makes T readable with probability p; otherwise it depends on a
    # prefix that has expired and T is written again. Subtracting: the anchor pays if m p (w5 - r) T > (w1 - w5) n.
    middle_rate = belief * times.read + (_ONE - belief) * times.write_5m
    next_call_rate = short * times.read + middle * middle_rate + long * times.write_5m
    next_call_rate_5m = short * times.read + (middle + long) * times.write_5m
    return Comparison(
        times.write_1h * written_tokens + next_call_rate * kept_tokens,
        times.write_5m * written_tokens + next_call_rate_5m * kept_tokens,
    )


def hours_pay(
    held_tokens: int, written_tokens: int, pauses: Amount, *, upgrade_probability: Amount, times: Multipliers
) -> Comparison:
    """Compare a prompt cached for an hour from its first token with 5 minutes, over all pauses still expected."""
    # n = written_tokens at the 1-hour rate now, T = held_tokens that survive each of k pauses of 5 to 60 minutes,
    # p = probability that TTLs upgrade. If they do, an anchor achieves the same for less, so only (1 - p) k pauses
    # count:
    #   1 hour:    w1 n + (1 - p) k r  T
    #   5 minutes: w5 n + (1 - p) k w5 T
    # It pays if (1 - p) k (w5 - r) T > (w1 - w5) n.
    pauses_counted = exact(pauses) * (_ONE - exact(upgrade_probability))
    return Comparison(
        times.write_1h * written_tokens + pauses_counted * times.read * held_tokens,
        times.write_5m * written_tokens + pauses_counted * times.write_5m * held_tokens,
    )


def named_cache_pays(price: Price, *, reads_expected: Amount, hours: Amount, made: bool = False) -> Comparison:
    """Compare an explicit cache (Gemini CachedContent) stored for `hours` with sending the prefix uncached; per token.

    `made` says that the cache exists, so that its creation is not paid again. Calls that hit the provider's implicit
    cache must not be counted in `reads_expected`: they would not get cheaper.
    """
    # Gemini bills creation at the input price i, storage at k per hour, reads at r (ai.google.dev "Context caching"):
    #   explicit: i + k h + n r      uncached: n i
    # It pays if n (i - r) > i + k h.
    reads = exact(reads_expected)
    creation = Decimal(0) if made else price.input
    explicit = creation + price.storage_per_hour * exact(hours) + reads * price.cache_read
    # Both sides are divided last: dividing each term would round equal costs to different values.
    unit = price.input or _ONE
    return Comparison(explicit / unit, reads * price.input / unit)
