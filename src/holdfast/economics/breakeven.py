"""Break-even comparisons: a 1-hour anchor, a 1-hour prompt, an explicit cache, a shorter prompt, a padded prefix.

Costs are in units of one uncached input token: a cache read costs `r`, a cache write `w`, both taken from the price's
multipliers. Each function compares the option in its name with not taking it, and is truthy if the option is cheaper.
"""

from decimal import Decimal

import msgspec

from holdfast.catalog.schema import Price
from holdfast.economics.cost import Amount, CostComparison, PriceMultipliers, arithmetic_sum, to_decimal

_ONE = Decimal(1)


class IdleShares(msgspec.Struct, frozen=True):
    """Probabilities that the next idle time is at most 5 minutes, at most an hour, or longer.

    Whatever is missing to 1 is the probability that the session never makes another call.
    """

    short: Amount
    middle: Amount
    long: Amount


def anchor_pays(
    kept_tokens: int, written_tokens: int, shares: IdleShares, *, upgrade_probability: Amount, times: PriceMultipliers
) -> CostComparison:
    """Compare a 1-hour breakpoint on the last block, after a prefix cached for 5 minutes, with 5 minutes throughout."""
    short, middle, long = to_decimal(shares.short), to_decimal(shares.middle), to_decimal(shares.long)
    belief = to_decimal(upgrade_probability)
    # n = written_tokens (this call writes them either way), T = kept_tokens (no longer-lived entry covers them yet),
    # s, m, l = idle-time probabilities, p = probability that a 1-hour write extends the TTL of the prefix before it.
    #   anchor:    w1 n + (s r + m (p r + (1 - p) w5) + l w5) T
    #   5 minutes: w5 n + (s r + (m + l) w5) T
    # After an idle time of 5 to 60 minutes the anchor makes T readable with probability p; otherwise it depends on a
    # prefix that has expired and T is written again. Subtracting: the anchor pays if m p (w5 - r) T > (w1 - w5) n.
    middle_rate = belief * times.read + (_ONE - belief) * times.write_5m
    next_call_rate = short * times.read + middle * middle_rate + long * times.write_5m
    next_call_rate_5m = short * times.read + (middle + long) * times.write_5m
    return CostComparison(
        times.write_1h * written_tokens + next_call_rate * kept_tokens,
        times.write_5m * written_tokens + next_call_rate_5m * kept_tokens,
    )


def hour_ttl_pays(
    held_tokens: int, written_tokens: int, pauses: Amount, *, upgrade_probability: Amount, times: PriceMultipliers
) -> CostComparison:
    """Compare a prompt cached for an hour from its first token with 5 minutes, over all pauses still expected."""
    # n = written_tokens at the 1-hour rate now, T = held_tokens that survive each of k pauses of 5 to 60 minutes,
    # p = probability that TTLs upgrade. If they do, an anchor achieves the same for less, so only (1 - p) k pauses
    # count:
    #   1 hour:    w1 n + (1 - p) k r  T
    #   5 minutes: w5 n + (1 - p) k w5 T
    # It pays if (1 - p) k (w5 - r) T > (w1 - w5) n.
    pauses_counted = to_decimal(pauses) * (_ONE - to_decimal(upgrade_probability))
    return CostComparison(
        times.write_1h * written_tokens + pauses_counted * times.read * held_tokens,
        times.write_5m * written_tokens + pauses_counted * times.write_5m * held_tokens,
    )


def explicit_cache_pays(price: Price, *, reads_expected: Amount, hours: Amount, made: bool = False) -> CostComparison:
    """Compare an explicit cache (Gemini CachedContent) stored for `hours` with sending the prefix uncached; per token.

    `made` says that the cache exists, so that its creation is not paid again. Calls that hit the provider's implicit
    cache must not be counted in `reads_expected`: they would not get cheaper.
    """
    # Gemini bills creation at the input price i, storage at k per hour, reads at r (ai.google.dev "Context caching"):
    #   explicit: i + k h + n r      uncached: n i
    # It pays if n (i - r) > i + k h.
    reads = to_decimal(reads_expected)
    creation = Decimal(0) if made else price.input
    explicit = creation + price.storage_per_hour * to_decimal(hours) + reads * price.cache_read
    # Both sides are divided last: dividing each term would round equal costs to different values.
    unit = price.input or _ONE
    return CostComparison(explicit / unit, reads * price.input / unit)


class CompactionSizes(msgspec.Struct, frozen=True):
    """Token counts: the prompt now, the prefix that stays unchanged, and everything after it in the new prompt."""

    prompt: int
    prefix: int
    after: int

    @property
    def removed(self) -> int:
        return max(0, self.prompt - self.prefix - self.after)


class CacheRates(msgspec.Struct, frozen=True):
    """Cost of a token read from cache and of a token written to it, in uncached tokens."""

    read: Decimal
    write: Decimal


def compaction_pays(sizes: CompactionSizes, rates: CacheRates, calls: Amount, *, cold: bool = False) -> CostComparison:
    """Compare sending the shorter prompt for the next `calls` calls with continuing as is.

    Tokens that later calls add are the same on both sides and left out.
    """
    # r/w = read/write rate, P = prompt, F = prefix, A = after, R = P - F - A removed, n = calls. With a warm cache:
    #   shorter: r F + w A + (n - 1) r (F + A)      as is: n r P
    # It pays if n > (w - r) A / (r R). With a cold cache both sides start with a write of their whole prompt.
    count = max(to_decimal(calls), Decimal(1))
    short_tokens, first_rate = sizes.prefix + sizes.after, rates.write if cold else rates.read
    first_call = first_rate * sizes.prefix + rates.write * sizes.after
    return CostComparison(
        first_call + (count - 1) * rates.read * short_tokens,
        first_rate * sizes.prompt + (count - 1) * rates.read * sizes.prompt,
    )


def one_time_cost(sizes: CompactionSizes, rates: CacheRates, *, cold: bool = False) -> Decimal:
    """One-time extra cost of the call that sends the shorter prompt; negative where that call is already cheaper."""
    # Cold: w (F + A) instead of w P saves w R. Warm: the A tokens are written instead of read; that the R removed
    # tokens are not read is counted as a per-call saving, not here.
    if cold:
        return -rates.write * sizes.removed
    return (rates.write - rates.read) * sizes.after


def break_even_calls(sizes: CompactionSizes, rates: CacheRates, *, cold: bool = False) -> float | None:
    """Number of calls after which the shorter prompt is cheaper; None where it never is."""
    saved_per_call = rates.read * sizes.removed
    if saved_per_call <= 0:
        return None
    return max(0.0, float(one_time_cost(sizes, rates, cold=cold) / saved_per_call))


def is_compaction_ripe(rates: CacheRates, carried_tokens: int, *, fixed_tokens: int, lost_tokens: int = 0) -> bool:
    """Whether carrying removable tokens has already cost as much as removing them would.

    `carried_tokens` sums, over the calls since the last compaction, the tokens that each call could have done without.
    `fixed_tokens` are written by any compaction however little the conversation has grown; `lost_tokens` will have to
    be fetched again afterwards.
    """
    # In a conversation that grows by g tokens a call, n calls between compactions carry g n^2 / 2 removable tokens at
    # r each, and pay C = (w - r) fixed + w lost once. The cost per call, r g n / 2 + C / n, is lowest where
    # r g n^2 / 2 = C, that is r * carried = C. Other tokens are written once whenever it happens: they do not count.
    return rates.read * carried_tokens >= (rates.write - rates.read) * fixed_tokens + rates.write * lost_tokens


class PaddingOutlook(msgspec.Struct, frozen=True):
    """What is expected of a session: its number of calls, and how many cacheable tokens each call adds."""

    calls: int
    growth_tokens: int = 0


def padding_pays(
    natural_tokens: int, padded_tokens: int, *, floor_tokens: int, ahead: PaddingOutlook, read: Decimal, write: Decimal
) -> CostComparison:
    """Compare a prefix padded up to the floor with leaving it as it is."""
    # S = natural_tokens, P = padded_tokens, F = floor_tokens, N = calls, g = growth per call, r/w = read/write rate.
    # Without growth the natural prefix is never cached and costs N S; the padded one is written once and then read:
    #   w P + (N - 1) r P.  Padding pays if S > r P and N > (w - r) P / (S - r P).
    # With growth the natural prompt reaches the floor by itself at call k = ceil((F - S) / g): calls i < k pay
    # S + g i uncached, call k writes S + g k, and from then on both prompts are cached, the padded one with P - S
    # tokens more. So every call after k makes padding less worthwhile, not more.
    calls, growth = ahead.calls, ahead.growth_tokens
    uncached_calls = _calls_below_floor(natural_tokens, floor_tokens, ahead)
    unpadded = Decimal(uncached_calls * natural_tokens + growth * arithmetic_sum(0, uncached_calls))
    if uncached_calls < calls:
        first_cached_tokens = natural_tokens + growth * uncached_calls
        unpadded += _cached_cost(first_cached_tokens, growth, calls - uncached_calls, read=read, write=write)
    return CostComparison(_cached_cost(padded_tokens, growth, calls, read=read, write=write), unpadded)


def _calls_below_floor(natural_tokens: int, floor_tokens: int, ahead: PaddingOutlook) -> int:
    if natural_tokens >= floor_tokens:
        return 0
    if not ahead.growth_tokens:
        return ahead.calls
    # Integer ceil((F - S) / g).
    return min(ahead.calls, -((natural_tokens - floor_tokens) // ahead.growth_tokens))


def _cached_cost(tokens: int, growth: int, calls: int, *, read: Decimal, write: Decimal) -> Decimal:
    """Cost of calls of which the first writes the whole prompt, and each later one reads it and writes its growth."""
    if not calls:
        return Decimal(0)
    # Written: tokens + g (N - 1). Read: sum of tokens + g i for i = 0 .. N - 2.
    later_calls = calls - 1
    written_tokens = tokens + growth * later_calls
    read_tokens = tokens * later_calls + growth * arithmetic_sum(0, later_calls)
    return write * written_tokens + read * read_tokens
