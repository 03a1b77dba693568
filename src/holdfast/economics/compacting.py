"""Whether a shorter prompt is cheaper: what it costs to write it once, against what every later call saves.

Everything is counted in units of one uncached input token: a read costs `r`, a write `w` of them.
"""

from decimal import Decimal

import msgspec

from holdfast.economics.comparison import Amount, Comparison, exact


class Sizes(msgspec.Struct, frozen=True):
    """Tokens of a prompt now, of the head that stays in front, and of what will stand behind it."""

    prompt: int
    head: int
    after: int

    @property
    def removed(self) -> int:
        return max(0, self.prompt - self.head - self.after)


class Rates(msgspec.Struct, frozen=True):
    """What a token costs that is read from cache, and one that is written, in uncached ones."""

    read: Decimal
    write: Decimal


def shorter_pays(sizes: Sizes, rates: Rates, calls: Amount, *, cold: bool = False) -> Comparison:
    """To send the shorter prompt from now on, for so many calls, against going on; what calls add is the same in both.

    Warm, the head F is read, what stands behind it is written once and read by others: r F + w A + (n - 1) r (F + A)
    against n r P. It pays if n > (w - r) A / (r R). Where the cache is cold, both begin with a write.
    """
    count = max(exact(calls), Decimal(1))
    short, first = sizes.head + sizes.after, rates.write if cold else rates.read
    begun = first * sizes.head + rates.write * sizes.after
    return Comparison(
        begun + (count - 1) * rates.read * short,
        first * sizes.prompt + (count - 1) * rates.read * sizes.prompt,
    )


def once_units(sizes: Sizes, rates: Rates, *, cold: bool = False) -> Decimal:
    """What the shorter prompt costs above going on, at the call that changes; below 0 where it saves at once."""
    if cold:
        return -rates.write * sizes.removed
    return (rates.write - rates.read) * sizes.after


def break_even_calls(sizes: Sizes, rates: Rates, *, cold: bool = False) -> float | None:
    """From how many calls on the shorter prompt is cheaper; None where it never is."""
    saved = rates.read * sizes.removed
    if saved <= 0:
        return None
    return max(0.0, float(once_units(sizes, rates, cold=cold) / saved))


def ripe(sizes: Sizes, rates: Rates, carried_tokens: int, *, lost_tokens: int = 0) -> bool:
    """Whether a warm prompt has carried what could be removed for as long as removing it costs.

    `carried_tokens` is the sum, over the calls since it was last made shorter, of what each could have done without;
    `lost_tokens` will be fetched again. Whoever waits until r * carried = (w - r) A + w lost pays at most twice what
    the best moment would have cost, however the conversation goes on; nobody can promise less who does not know it.
    """
    return rates.read * carried_tokens >= (rates.write - rates.read) * sizes.after + rates.write * lost_tokens
