"""Whether it pays to pad a prefix that is shorter than the provider's minimum cacheable size."""

from decimal import Decimal

import msgspec

from holdfast.economics.comparison import Comparison, arithmetic_sum


class Outlook(msgspec.Struct, frozen=True):
    """What is expected of a session: its number of calls, and how many cacheable tokens each call adds."""

    calls: int
    growth_tokens: int = 0


def padding_pays(
    natural_tokens: int,
    padded_tokens: int,
    *,
    floor_tokens: int,
    ahead: Outlook,
    read: Decimal,
    write: Decimal,
) -> Comparison:
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
    return Comparison(_cached_cost(padded_tokens, growth, calls, read=read, write=write), unpadded)


def _calls_below_floor(natural_tokens: int, floor_tokens: int, ahead: Outlook) -> int:
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
