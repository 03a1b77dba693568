"""Whether to keep an idle cache warm by a request that asks for nothing, for how long, and when to stop.

In units of one uncached input token, as in `breakeven`. A ping is the last request once more: it reads the prefix, and
that alone gives it another lifetime.
"""

import math
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.economics.comparison import Amount, Comparison, exact
from holdfast.economics.cost import Multipliers

_ONE = Decimal(1)


def ping_pays(
    prefix_tokens: int, return_share: Amount, *, read: Decimal, write: Decimal, closing_tokens: int = 0
) -> Comparison:
    """To read the prefix once more before it lapses, against letting it lapse.

    With probability q the session comes back in the time that the ping buys. The ping costs r T and its closing words
    c, and the call that comes then reads: r T + c + q r T. Without it that call writes all again: q w T. What comes
    later costs the same either way. It pays if q (w - r) T > r T + c.
    """
    share = exact(return_share)
    pinged = read * prefix_tokens + closing_tokens + share * read * prefix_tokens
    return Comparison(pinged, share * write * prefix_tokens)


def upgrade_ping_pays(
    prefix_tokens: int,
    reply_tokens: int,
    return_share: Amount,
    *,
    upgrade_belief: Amount,
    times: Multipliers,
    closing_tokens: int = 0,
    held_tokens: int = 0,
) -> Comparison:
    """To write the last reply behind the warm prefix with a mark of an hour, against letting both lapse.

    With probability q the session comes back after the prefix would have lapsed and before the hour is over. The ping
    reads T, writes the reply R for an hour and says its closing words c. If lifetimes upgrade (belief p) the next call
    then reads T + R; if not, it writes them, as it would have without: r T + w1 R + c + q (p r + (1 - p) w5) (T + R)
    against q w5 (T + R). It pays if q p (w5 - r) (T + R) > r T + w1 R + c; what an entry of an hour holds already (H of
    T) is read without the ping too, and is not saved by it. The 5 minutes that the read buys if lifetimes do not
    upgrade are not counted.
    """
    share, belief, at_stake = exact(return_share), exact(upgrade_belief), prefix_tokens + reply_tokens - held_tokens
    after = belief * times.read + (_ONE - belief) * times.write_5m
    ping = times.read * prefix_tokens + times.write_1h * reply_tokens + closing_tokens
    return Comparison(ping + share * after * at_stake, share * times.write_5m * at_stake)


class Pinging(msgspec.Struct, frozen=True):
    """How many pings are worth sending, and what they save, in uncached tokens."""

    pings: int
    saved_units: Decimal


def pings_worth(
    return_shares: Sequence[Amount],
    *,
    read: Decimal,
    write: Decimal,
    prompt_tokens: int = 1,
    held_tokens: int = 0,
) -> Pinging:
    """After how many pings to stop: `return_shares[i]` is how likely the session comes back in what ping i buys.

    Ping i is sent only if the session is still away, with what probability is left: s_i = 1 - q_0 - ... - q_(i-1).
    It costs s_i r T and saves q_i (w - r) (T - H), where H of the T tokens are held by another entry in any case; and
    it is of no use without all pings before it: the best number is the one at which the sum is largest. Shares count
    from now on, and add up to 1 at most.
    """
    cost, saving = read * prompt_tokens, (write - read) * (prompt_tokens - held_tokens)
    left, gained = _ONE, Decimal(0)
    best, best_gain = 0, Decimal(0)
    for count, share in enumerate(map(exact, return_shares), 1):
        gained += share * saving - left * cost
        left -= share
        if gained > best_gain:
            best, best_gain = count, gained
    return Pinging(best, best_gain)


def pings_max(*, read: Decimal, write: Decimal) -> int | None:
    """How many pings one return can pay for, even a certain one: n r < w - r. None where reading is free.

    A session that has been pinged so often and has not come back has cost as much as the rewrite would have.
    """
    if not read:
        return None
    return max(math.ceil((write - read) / read) - 1, 0)
