"""Break-even of a shorter prompt: rewriting it once, against what every later call saves.

Costs are in units of one uncached input token: a cache read costs `r`, a cache write `w`.
"""

from decimal import Decimal

import msgspec

from holdfast.economics.comparison import Amount, Comparison, exact


class Sizes(msgspec.Struct, frozen=True):
    """Token counts: the prompt now, the prefix that stays unchanged, and everything after it in the new prompt."""

    prompt: int
    head: int
    after: int

    @property
    def removed(self) -> int:
        return max(0, self.prompt - self.head - self.after)


class Rates(msgspec.Struct, frozen=True):
    """Cost of a token read from cache and of a token written to it, in uncached tokens."""

    read: Decimal
    write: Decimal


def shorter_pays(sizes: Sizes, rates: Rates, calls: Amount, *, cold: bool = False) -> Comparison:
    """Compare sending the shorter prompt for the next `calls` calls with continuing as is.

    Tokens that later calls add are the same on both sides and left out.
    """
    # P = prompt, F = head, A = after, R = P - F - A removed, n = calls. With a warm cache:
    #   shorter: r F + w A + (n - 1) r (F + A)      as is: n r P
    # It pays if n > (w - r) A / (r R). With a cold cache both sides start with a write of their whole prompt.
    count = max(exact(calls), Decimal(1))
    short_tokens, first_rate = sizes.head + sizes.after, rates.write if cold else rates.read
    first_call = first_rate * sizes.head + rates.write * sizes.after
    return Comparison(
        first_call + (count - 1) * rates.read * short_tokens,
        first_rate * sizes.prompt + (count - 1) * rates.read * sizes.prompt,
    )


def once_units(sizes: Sizes, rates: Rates, *, cold: bool = False) -> Decimal:
    """One-time extra cost of the call that sends the shorter prompt; negative where that call is already cheaper."""
    # Cold: w (F + A) instead of w P saves w R. Warm: the A tokens are written instead of read; that the R removed
    # tokens are not read is counted as a per-call saving, not here.
    if cold:
        return -rates.write * sizes.removed
    return (rates.write - rates.read) * sizes.after


def break_even_calls(sizes: Sizes, rates: Rates, *, cold: bool = False) -> float | None:
    """Number of calls after which the shorter prompt is cheaper; None where it never is."""
    saved_per_call = rates.read * sizes.removed
    if saved_per_call <= 0:
        return None
    return max(0.0, float(once_units(sizes, rates, cold=cold) / saved_per_call))


def ripe(rates: Rates, carried_tokens: int, *, fixed_tokens: int, lost_tokens: int = 0) -> bool:
    """Whether carrying removable tokens has already cost as much as removing them would.

    `carried_tokens` sums, over the calls since the last compaction, the tokens that each call could have done without.
    `fixed_tokens` are written by any compaction however little the conversation has grown; `lost_tokens` will have to
    be fetched again afterwards.
    """
    # In a conversation that grows by g tokens a call, n calls between compactions carry g n^2 / 2 removable tokens at
    # r each, and pay C = (w - r) fixed + w lost once. The cost per call, r g n / 2 + C / n, is lowest where
    # r g n^2 / 2 = C, that is r * carried = C. Other tokens are written once whenever it happens: they do not count.
    return rates.read * carried_tokens >= (rates.write - rates.read) * fixed_tokens + rates.write * lost_tokens
