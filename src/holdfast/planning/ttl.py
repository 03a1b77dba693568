"""The TTL of the newest breakpoint: five minutes, or an hour where the expected pauses pay for it."""

from typing import Literal

import msgspec

from holdfast.economics.breakeven import IdleShares, anchor_pays, hour_ttl_pays
from holdfast.economics.cost import PriceMultipliers
from holdfast.planning.idle_times import IdleTimes
from holdfast.planning.keep_alive import TTL_SECONDS
from holdfast.planning.learned import Anchor, CacheMemory, LearnedParameters
from holdfast.planning.policy import PlanningMoment
from holdfast.types.prompt import PlanProbabilities

# `short`: 5 minutes. `anchor`: one hour, once, on the new tokens only. `hour`: one hour from the first token on.
TtlReach = Literal["short", "anchor", "hour"]


# A client's conversation with fewer calls gets a 1-hour TTL or a ping only if a pause was seen, in it or in an earlier
# one: the assumed share of pauses is a guess, and short conversations would pay for it with nothing to gain.
CALLS_BEFORE_GUESS = 8

DAY_SECONDS = 86_400.0


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
    pause, upgrade = probabilities.pause, probabilities.upgrade
    # Idle times over an hour lose the cache under either TTL: they cancel out, so they are counted as short.
    next_idle_time = IdleShares(1 - pause, pause, 0)
    anchor = anchor_pays(stakes.unanchored, stakes.written, next_idle_time, upgrade_probability=upgrade, times=times)
    anchor_gain = float(anchor.saved_units)
    held_tokens = stakes.prompt if hour_chain or stakes.written == stakes.prompt else 0
    written_tokens = stakes.written if hour_chain else held_tokens
    pauses_left = probabilities.pauses_left
    hour_gain = 0.0
    # In most calls an hour is no option, and exact arithmetic on zeros takes as long as on anything else.
    if held_tokens or written_tokens:
        hour = hour_ttl_pays(held_tokens, written_tokens, pauses_left, upgrade_probability=upgrade, times=times)
        hour_gain = float(hour.saved_units)
    if hour_gain > max(anchor_gain, 0.0):
        return TtlChoice("hour", hour_gain, f"{pauses_left:.1f} pauses of up to an hour are expected")
    pause_forecast = f"a pause of 5 to 60 minutes follows with probability {pause:.1%}"
    if anchor_gain > 0:
        return TtlChoice("anchor", anchor_gain, f"{pause_forecast}, {stakes.written} tokens are new")
    return TtlChoice("short", 0.0, f"{pause_forecast}: too low for a 1-hour TTL")


def is_guess(memory: CacheMemory, learned: LearnedParameters) -> bool:
    """Whether only the assumed share of pauses speaks for one, in a conversation too short to act on that."""
    if memory.calls >= CALLS_BEFORE_GUESS:
        return False
    # Longer idle times are mostly the ends of sessions.
    seen = memory.idle_times.all + learned.idle_times.all
    return seen.probability(TTL_SECONDS["5m"], DAY_SECONDS) == 0


def compute_ttl_stakes(
    moment: PlanningMoment, memory: CacheMemory, anchor: Anchor | None, *, upgrades: bool
) -> TtlStakes:
    buffer = moment.buffer
    # The size of the last prompt as reported, plus our estimate for the blocks added since.
    new_tokens = sum(buffer.tokens[memory.blocks :]) if memory.blocks <= len(buffer.tokens) else buffer.tokens_total
    prompt_tokens = memory.tail_tokens + new_tokens if memory.blocks else buffer.tokens_total
    is_warm = memory.used_at is not None and moment.at - memory.used_at < TTL_SECONDS["5m"]
    anchored_hit = anchor.tokens if anchor is not None and (anchor.is_sound or upgrades) else 0
    hit_tokens = memory.tail_tokens if is_warm else anchored_hit
    # If anchors survive pauses at all, the last one does: a new one is worth only the tokens added since.
    anchored_tokens = anchor.tokens if anchor is not None else 0
    written, unanchored = max(0, prompt_tokens - hit_tokens), max(0, prompt_tokens - anchored_tokens)
    return TtlStakes(prompt_tokens, written, unanchored)


def estimate_probabilities(idle_times: IdleTimes, memory: CacheMemory, learned: LearnedParameters) -> PlanProbabilities:
    # A pause is an idle time of 5 to 60 minutes: it loses a 5-minute entry and not a 1-hour one. Each remaining call is
    # followed by one with probability `pause`. A session that has outlived the average is taken to be half over.
    pause = idle_times.probability(TTL_SECONDS["5m"], TTL_SECONDS["1h"])
    calls_left = max(learned.calls_expected - memory.calls, memory.calls, 1)
    upgrade = (learned.upgrade_belief + memory.upgrade_belief).probability
    return PlanProbabilities(pause=pause, pauses_left=pause * calls_left, upgrade=upgrade)
