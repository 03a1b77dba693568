"""How long the newest entry shall live: five minutes, or the hour that a pause would need."""

from typing import Literal

import msgspec

from holdfast.canonical.prompt import Odds
from holdfast.economics.breakeven import GapShares, anchor_pays, hours_pay
from holdfast.economics.cost import Multipliers

Reach = Literal["short", "anchor", "hour"]
"""`short`: the short lifetime. `anchor`: the long one, once, on what is new. `hour`: the long one from the start on."""


class Stakes(msgspec.Struct, frozen=True):
    """Tokens: the whole prompt, those of it that this call writes, and those that no long-lived entry holds yet."""

    prompt: int
    written: int
    unanchored: int


class Choice(msgspec.Struct, frozen=True):
    """`gain_units` is what it saves, expected, over the short lifetime, in uncached input tokens."""

    reach: Reach
    gain_units: float
    reason: str


def choose(stakes: Stakes, odds: Odds, times: Multipliers, *, hour_chain: bool) -> Choice:
    """The lifetime of the tail, by what each costs more now and saves after the next pauses.

    An anchor is worth what the very next gap can bring. The hour from the start on is worth all pauses to come, but
    only for a prompt that was written so from its first token (`hour_chain`), or is written as a whole now.
    """
    next_gap = GapShares(1 - odds.pause, odds.pause, 0)
    anchor = float(
        anchor_pays(stakes.unanchored, stakes.written, next_gap, upgrade_belief=odds.upgrade, times=times).saved_units
    )
    held = stakes.prompt if hour_chain or stakes.written == stakes.prompt else 0
    dearer = stakes.written if hour_chain else held
    hour = float(hours_pay(held, dearer, odds.pauses_left, upgrade_belief=odds.upgrade, times=times).saved_units)
    if hour > max(anchor, 0.0):
        return Choice("hour", hour, f"{odds.pauses_left:.1f} pauses of up to an hour are expected")
    if anchor > 0:
        return Choice("anchor", anchor, f"a pause is next with {odds.pause:.1%}, and {stakes.written} tokens are new")
    return Choice("short", 0.0, f"a pause is next with {odds.pause:.1%}, which does not pay for the hour")
