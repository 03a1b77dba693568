"""Whether a prefix that is too short to be cached is worth making longer."""

from decimal import Decimal

import msgspec

from holdfast.economics.comparison import Comparison, arithmetic_sum


class Outlook(msgspec.Struct, frozen=True):
    """What is expected of a session: so many calls, each of which adds so many tokens to what can be cached."""

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
    """To pad a prefix of S tokens to P, which reaches the floor, against leaving it.

    If nothing is added to it, the natural prefix is plain input in each of N calls: N S. The padded one is written once
    and then read: w P + (N - 1) r P. So padding pays if S > r P and N > (w - r) P / (S - r P).

    If what is cached grows by g tokens a call, as a marked conversation does, it reaches the floor by itself at call
    k = (F - S) / g: only the calls before it pay S + g i as plain input, call k writes S + g k, and from then on both
    are read, the padded prompt with P - S tokens more for as long as the session lasts: each call after k makes padding
    worth less, not more.
    """
    calls, growth = ahead.calls, ahead.growth_tokens
    plain = _calls_below_floor(natural_tokens, floor_tokens, ahead)
    unpadded = Decimal(plain * natural_tokens + growth * arithmetic_sum(0, plain))
    if plain < calls:
        unpadded += _kept(natural_tokens + growth * plain, growth, calls - plain, read=read, write=write)
    return Comparison(_kept(padded_tokens, growth, calls, read=read, write=write), unpadded)


def padding_calls_min(natural_tokens: int, padded_tokens: int, *, read: Decimal, write: Decimal) -> Decimal | None:
    """The number of calls that must be passed for padding to pay where nothing grows; None if none is enough."""
    margin = natural_tokens - read * padded_tokens
    return (write - read) * padded_tokens / margin if margin > 0 else None


def _calls_below_floor(natural_tokens: int, floor_tokens: int, ahead: Outlook) -> int:
    if natural_tokens >= floor_tokens:
        return 0
    if not ahead.growth_tokens:
        return ahead.calls
    return min(ahead.calls, -((natural_tokens - floor_tokens) // ahead.growth_tokens))


def _kept(tokens: int, growth: int, calls: int, *, read: Decimal, write: Decimal) -> Decimal:
    """What so many calls cost of which the first writes all and each later one reads it and writes what is new."""
    if not calls:
        return Decimal(0)
    later = calls - 1
    return write * (tokens + growth * later) + read * (tokens * later + growth * arithmetic_sum(0, later))
