"""Which of two ways to cache is cheaper: marks, lifetimes, anchors, named caches, another model, volatile text.

Everything is counted in units of one uncached input token: a read costs `r`, a write `w` of them, by the multipliers of
a price. Each function compares what its name proposes with leaving it, and is true if the proposal is cheaper.
"""

from decimal import Decimal

import msgspec

from holdfast.catalog.rows import Price
from holdfast.economics.comparison import Amount, Comparison, arithmetic_sum, exact
from holdfast.economics.cost import Multipliers

_ONE = Decimal(1)


class GapShares(msgspec.Struct, frozen=True):
    """How likely the next gap is at most 5 minutes, up to an hour, or longer; what is missing to 1 never ends."""

    short: Amount
    middle: Amount
    long: Amount


def mark_pays(tokens: int, reads_expected: Amount, *, read: Decimal, write: Decimal) -> Comparison:
    """To mark a prefix that so many later calls will read, against sending it plain each time.

    Marked, one call writes it and n read it: T(w + n r). Plain, all of them pay for it: T(1 + n). The mark pays if
    n > (w - 1) / (1 - r): from the second use on at w = 1.25, from the third at w = 2.
    """
    reads = exact(reads_expected)
    return Comparison(tokens * (write + reads * read), tokens * (_ONE + reads))


def hour_pays(prefix_tokens: int, new_tokens: int, gaps: GapShares, times: Multipliers) -> Comparison:
    """To keep a conversation for an hour, against 5 minutes, from one call to the next.

    Each call writes its n new tokens, and finds the prefix of T tokens before them or has to write it again. With s, m
    and l the shares of the gaps, an hour costs w1 n + (s + m) r T + l w1 T, 5 minutes w5 n + s r T + (m + l) w5 T. The
    hour pays if m (w5 - r) T > (w1 - w5) (n + l T): gaps of 5 to 60 minutes must be worth the dearer writes.
    """
    short, middle, long = exact(gaps.short), exact(gaps.middle), exact(gaps.long)
    hour = times.write_1h * new_tokens + ((short + middle) * times.read + long * times.write_1h) * prefix_tokens
    five = times.write_5m * new_tokens + (short * times.read + (middle + long) * times.write_5m) * prefix_tokens
    return Comparison(hour, five)


def anchor_pays(
    kept_tokens: int, written_tokens: int, gaps: GapShares, *, upgrade_belief: Amount, times: Multipliers
) -> Comparison:
    """To mark the tail for an hour behind a prefix that is warm for 5 minutes, against 5 minutes throughout.

    Either way this call writes the n tokens of the tail. With belief p lifetimes upgrade: then a gap of 5 to 60 minutes
    leaves T tokens readable that no entry would hold without the anchor, the prefix and the tail behind what an earlier
    anchor holds; if they do not, the anchor rests on what has lapsed and all is written again, as it is without it. It
    pays if m p (w5 - r) T > (w1 - w5) n.
    """
    short, middle, long = exact(gaps.short), exact(gaps.middle), exact(gaps.long)
    belief = exact(upgrade_belief)
    warm = belief * times.read + (_ONE - belief) * times.write_5m
    after = short * times.read + middle * warm + long * times.write_5m
    after_plain = short * times.read + (middle + long) * times.write_5m
    return Comparison(
        times.write_1h * written_tokens + after * kept_tokens,
        times.write_5m * written_tokens + after_plain * kept_tokens,
    )


def hours_pay(
    held_tokens: int, dearer_tokens: int, pauses: Amount, *, upgrade_belief: Amount, times: Multipliers
) -> Comparison:
    """To write a prompt for an hour from its first token on, against 5 minutes, over all pauses that are to come.

    Of n tokens that are written dearer now, T in all outlive each of k pauses of 5 to 60 minutes, if lifetimes do not
    upgrade (with probability 1 - p; if they do, an anchor does the same for less): w1 n + k r T against w5 n +
    k w5 T. It pays if (1 - p) k (w5 - r) T > (w1 - w5) n.
    """
    counted = exact(pauses) * (_ONE - exact(upgrade_belief))
    return Comparison(
        times.write_1h * dearer_tokens + counted * times.read * held_tokens,
        times.write_5m * dearer_tokens + counted * times.write_5m * held_tokens,
    )


def named_cache_pays(price: Price, *, reads_expected: Amount, hours: Amount, made: bool = False) -> Comparison:
    """To keep a prefix under a name for so long, against sending it plain with each call; per token of it.

    Making it costs plain input once, unless it is `made` already, and storage costs k an hour: i + k h + n r against
    n i. It pays if n (i - r) > i + k h. Calls that read the prefix from the provider's own cache are no reads here:
    they would save nothing.
    """
    reads = exact(reads_expected)
    making = Decimal(0) if made else price.input
    named = making + price.storage_per_hour * exact(hours) + reads * price.cache_read
    # Divided last, so that what is equal stays equal.
    unit = price.input or _ONE
    return Comparison(named / unit, reads * price.input / unit)


class Workload(msgspec.Struct, frozen=True):
    """What is still to come: so many calls, each with so many new tokens, answered with so many."""

    calls: int
    new_tokens: int = 0
    output_tokens: int = 0


def switch_pays(
    now: Price, other: Price, *, prompt_tokens: int, ahead: Workload, first_rate: Decimal, other_first_rate: Decimal
) -> Comparison:
    """To go on with another model, whose cache is cold, against staying; in uncached tokens of the present model.

    Staying, call i of N reads T + g i tokens and writes the g that are new; with the other model the first call
    writes T + g and all others read and write as before, at its rates. The `first_rate` of a model is what a token
    costs that its provider has not seen. It pays if the rates save, over all calls, more than (w' - r') T.
    """
    calls, new = ahead.calls, ahead.new_tokens
    unit = now.input or _ONE
    if not calls:
        return Comparison(Decimal(0), Decimal(0))
    read_tokens = calls * prompt_tokens + new * arithmetic_sum(0, calls)
    written, output = calls * new, calls * ahead.output_tokens
    stay = read_tokens * now.cache_read + written * first_rate + output * now.output
    warm_tokens = read_tokens - prompt_tokens
    leave = warm_tokens * other.cache_read + (prompt_tokens + written) * other_first_rate + output * other.output
    return Comparison(leave / unit, stay / unit)


class VolatileText(msgspec.Struct, frozen=True):
    """Text of so many tokens that differs at every `changes_every` calls, the first included."""

    tokens: int
    changes_every: int


def sticky_pays(
    text: VolatileText, times: Multipliers, *, calls: int, turns: int = 1, tokens_behind: int = 0
) -> Comparison:
    """To leave volatile text in the history once it is said, against sending it with each call and dropping it.

    Sticky text of t tokens is written when it changes, and all that was ever said is read by every later call: said
    at call j, it costs t (w + (N - 1 - j) r). Dropped text is plain input in each of N calls; and what a turn put
    behind it (b tokens of answers and tool results) moves with the next turn, and is written again instead of read:
    (w - r) b for every turn but the first. Text that changes with every call is cheaper to drop once N is
    large, unless b is.
    """
    said = len(range(0, calls, text.changes_every))
    later_reads = said * (calls - 1) - text.changes_every * arithmetic_sum(0, said) if said else 0
    sticky = text.tokens * (said * times.write_5m + later_reads * times.read)
    moved = max(turns - 1, 0) * tokens_behind * (times.write_5m - times.read)
    return Comparison(sticky, calls * text.tokens + moved)
