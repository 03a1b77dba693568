"""Which TTL the newest cache entry gets: five minutes, or the hour that a pause would need."""

from typing import Literal

import msgspec

from holdfast.economics.breakeven import IdleShares, anchor_pays, hour_ttl_pays
from holdfast.economics.cost import PriceMultipliers
from holdfast.types.prompt import PlanProbabilities

# `short`: 5 minutes. `anchor`: one hour, once, on the new tokens only. `hour`: one hour from the first token on.
TtlReach = Literal["short", "anchor", "hour"]


class TtlStakes(msgspec.Struct, frozen=True):
    """Token counts: the whole prompt, what this call writes, and what no 1-hour entry holds yet."""

    prompt: int
    written: int
    unanchored: int


class TtlChoice(msgspec.Struct, frozen=True):
    """`gain_units` is the expected saving over the 5-minute TTL, in uncached input tokens."""

    reach: TtlReach
    gain_units: float
    reason: str


def choose_ttl(
    stakes: TtlStakes, probabilities: PlanProbabilities, times: PriceMultipliers, *, hour_chain: bool
) -> TtlChoice:
    """The TTL of the last breakpoint, by its extra cost now and its expected saving after the next pauses.

    An anchor is valued by the very next idle time. One hour from the start is valued by all pauses to come, but only
    for a prompt that was written that way from its first token (`hour_chain`) or is written as a whole now.
    """
    # Idle times over an hour lose the cache under either TTL: they cancel out, so they are counted as short.
    next_gap = IdleShares(1 - probabilities.pause, probabilities.pause, 0)
    anchor_gain = float(
        anchor_pays(
            stakes.unanchored, stakes.written, next_gap, upgrade_probability=probabilities.upgrade, times=times
        ).saved_units
    )
    held_tokens = stakes.prompt if hour_chain or stakes.written == stakes.prompt else 0
    written_tokens = stakes.written if hour_chain else held_tokens
    hour_gain = float(
        hour_ttl_pays(
            held_tokens,
            written_tokens,
            probabilities.pauses_left,
            upgrade_probability=probabilities.upgrade,
            times=times,
        ).saved_units
    )
    if hour_gain > max(anchor_gain, 0.0):
        return TtlChoice("hour", hour_gain, f"{probabilities.pauses_left:.1f} pauses of up to an hour are expected")
    pause_forecast = f"a pause of 5 to 60 minutes follows with probability {probabilities.pause:.1%}"
    if anchor_gain > 0:
        return TtlChoice("anchor", anchor_gain, f"{pause_forecast}, {stakes.written} tokens are new")
    return TtlChoice("short", 0.0, f"{pause_forecast}: too low for a 1-hour TTL")
