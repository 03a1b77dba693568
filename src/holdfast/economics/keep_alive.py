"""Whether to keep an idle session's cache warm with ping requests and how many, and when a waiting agent should resume.

Costs are in units of one uncached input token, as in `breakeven`. A ping repeats the last request: every cache read
refreshes the entry's TTL for free (Anthropic, "Prompt caching").
"""

import math
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.economics.cost import Amount, CostComparison, PriceMultipliers, to_decimal

_ONE = Decimal(1)

# How long before the cache expires the next request should start: TTLs count from the start of a request, which takes
# a while to arrive. The same margin as `planning.keep_alive.PING_MARGIN_SECONDS`.
WAKE_MARGIN_SECONDS = 15.0

# Minimum wait for an agent that cannot resume in time: a miss costs the same after 6 minutes as after 20, so the wait
# should be worth it.
LONG_WAIT_SECONDS = 1200.0


def upgrade_ping_pays(
    prefix_tokens: int,
    reply_tokens: int,
    return_share: Amount,
    *,
    upgrade_probability: Amount,
    times: PriceMultipliers,
    closing_tokens: int = 0,
    held_tokens: int = 0,
) -> CostComparison:
    """Compare one ping that writes the last reply with a 1-hour TTL with letting the cache expire."""
    # T = prefix_tokens, R = reply_tokens, c = closing_tokens (the user message that a ping must end on), H =
    # held_tokens of T that a 1-hour entry holds anyway, q = return_share: probability that the session returns after
    # the prefix would have expired and within the hour, p = probability that the 1-hour write extends the prefix too.
    # The ping reads T, writes R for an hour and sends c uncached. The next call then reads T + R - H with probability
    # p, else writes them, as it would without the ping:
    #   ping:    r T + w1 R + c + q (p r + (1 - p) w5) (T + R - H)
    #   no ping:                  q w5 (T + R - H)
    # It pays if q p (w5 - r) (T + R - H) > r T + w1 R + c. The 5 minutes that the read buys if TTLs do not upgrade
    # are not counted, which errs against the ping.
    share, belief = to_decimal(return_share), to_decimal(upgrade_probability)
    at_stake = prefix_tokens + reply_tokens - held_tokens
    next_call_rate = belief * times.read + (_ONE - belief) * times.write_5m
    ping = times.read * prefix_tokens + times.write_1h * reply_tokens + closing_tokens
    return CostComparison(ping + share * next_call_rate * at_stake, share * times.write_5m * at_stake)


class PingPlan(msgspec.Struct, frozen=True):
    """The best number of pings, and what they are expected to save, in uncached tokens."""

    pings: int
    saved_units: Decimal


def best_ping_count(
    return_shares: Sequence[Amount], *, read: Decimal, write: Decimal, prompt_tokens: int = 1, held_tokens: int = 0
) -> PingPlan:
    """The number of pings with the highest expected saving.

    `return_shares[i]` is the probability, as of now, that the session returns in the time that ping i buys; the shares
    add up to 1 at most.
    """
    # T = prompt_tokens, of which another entry holds H = held_tokens in any case, q_i = return_shares[i].
    # Ping i is sent only if the session is still idle, with probability s_i = 1 - q_0 - ... - q_(i-1). It costs
    # s_i r T and saves q_i (w - r) (T - H): a read instead of a write. A ping is useless without all pings before it,
    # so the best count is the one with the largest running sum, not the first one that loses.
    ping_cost, return_saving = read * prompt_tokens, (write - read) * (prompt_tokens - held_tokens)
    still_idle, expected_gain = _ONE, Decimal(0)
    best_count, best_gain = 0, Decimal(0)
    for count, share in enumerate(map(to_decimal, return_shares), 1):
        expected_gain += share * return_saving - still_idle * ping_cost
        still_idle -= share
        if expected_gain > best_gain:
            best_count, best_gain = count, expected_gain
    return PingPlan(best_count, best_gain)


def pings_max(*, read: Decimal, write: Decimal) -> int | None:
    """How many pings a certain return can pay for; None where reads are free."""
    # n pings cost n r per token and save w - r, so n r < w - r: the largest such n is ceil((w - r) / r) - 1.
    # A session pinged more often than that has cost more than rewriting its prompt once.
    if not read:
        return None
    return max(math.ceil((write - read) / read) - 1, 0)


class NextWake(msgspec.Struct, frozen=True):
    """Resume within `within_seconds` for `warm_usd`, or not before `or_after_seconds` for `cold_usd`.

    Any time in between costs as much as the long wait and gains less from it. `within_seconds` is 0 where nothing is
    cached. Resuming in time up to `warm_wakes_max` times (None: unlimited) with nothing to do is still cheaper than one
    cold start. Amounts cover the prompt only.
    """

    prompt_tokens: int
    within_seconds: float
    or_after_seconds: float
    warm_usd: Decimal
    cold_usd: Decimal
    warm_wakes_max: int | None

    def __str__(self) -> str:
        cold = f"after {self.or_after_seconds / 60:.0f} min or more for ${self.cold_usd:.4f}"
        if not self.within_seconds:
            return f"nothing is warm: come back {cold}"
        return f"come back within {self.within_seconds:.0f} s for ${self.warm_usd:.4f}, or {cold}"


def plan_wake(
    *, prompt_tokens: int, cached_tokens: int, warm_seconds: float, read_usd: Decimal, write_usd: Decimal
) -> NextWake:
    """The two times to resume at; `warm_seconds` is how long the cached tokens stay cached, rates are per million."""
    # T = prompt_tokens, C = cached_tokens. In time: r C + w (T - C). Late: w T. Resuming n times with nothing to do
    # pays n r C to save (w - r) C, which bounds n exactly as for pings.
    cached = min(cached_tokens, prompt_tokens)
    within = max(warm_seconds - WAKE_MARGIN_SECONDS, 0.0) if cached else 0.0
    cold = prompt_tokens * write_usd / 1_000_000
    warm = (cached * read_usd + (prompt_tokens - cached) * write_usd) / 1_000_000
    return NextWake(
        prompt_tokens=prompt_tokens,
        within_seconds=within,
        or_after_seconds=max(LONG_WAIT_SECONDS, warm_seconds if cached else 0.0),
        warm_usd=warm if within else cold,
        cold_usd=cold,
        warm_wakes_max=pings_max(read=read_usd, write=write_usd) if within else 0,
    )
