"""How long the newest entry shall live: five minutes, or the hour that a pause would need."""

from typing import Literal

import msgspec

from holdfast.economics.cost import Multipliers

Reach = Literal["short", "anchor", "hour"]
"""`short`: the short lifetime. `anchor`: the long one, once, on what is new. `hour`: the long one from the start on."""


class Odds(msgspec.Struct, frozen=True):
    """What is expected of the session.

    `pause`: the next gap is longer than the short lifetime and no longer than the long one. `pauses_left`: how many
    such gaps are still to come. `upgrade`: a long lifetime behind a warm prefix keeps that prefix too.
    """

    pause: float
    pauses_left: float
    upgrade: float


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

    A pause between the two lifetimes turns a read of the prompt into a write, at (write_5m - read) a token. An anchor
    costs (write_1h - write_5m) for the tokens that this call writes anyway, and saves that difference for all
    that was not anchored yet, if lifetimes upgrade and the very next gap is such a pause. Where they do not, only a
    prompt that was written for the hour from its first token survives: that costs the same difference on
    everything written, now and later, and saves it at each of the pauses to come.
    """
    dearer = float(times.write_1h - times.write_5m)
    saved = float(times.write_5m - times.read)
    cost = dearer * stakes.written
    anchor = odds.upgrade * odds.pause * saved * stakes.unanchored - cost
    held = stakes.prompt if hour_chain or stakes.written == stakes.prompt else 0
    hour = (1 - odds.upgrade) * odds.pauses_left * saved * held - dearer * (held if not hour_chain else stakes.written)
    if hour > max(anchor, 0.0):
        return Choice("hour", hour, f"{odds.pauses_left:.1f} pauses of up to an hour are expected")
    if anchor > 0:
        return Choice("anchor", anchor, f"a pause is next with {odds.pause:.1%}, and {stakes.written} tokens are new")
    return Choice("short", 0.0, f"a pause is next with {odds.pause:.1%}, which does not pay for the hour")
