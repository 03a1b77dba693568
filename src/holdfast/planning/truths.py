"""Whether a longer lifetime behind a warm prefix keeps that prefix too: nobody says, so usage has to tell."""

import math

import msgspec

HIT_IF_TRUE = 0.85
HIT_IF_FALSE = 0.03
"""How likely the first call after a pause is to read an anchor, if anchors hold, and if they do not.

Neither is certain: caches are evicted early now and then, and routes differ.
"""

LOG_ODDS_MAX = 6.0
"""How sure anyone can be: a few calls to the contrary must be enough to change our mind."""


class Belief(msgspec.Struct, frozen=True):
    """What a model on a route was seen to do: `read` anchors after a pause, and `lost` ones."""

    log_odds: float = 0.0
    read: int = 0
    lost: int = 0

    @property
    def chance(self) -> float:
        """How likely it is that lifetimes upgrade."""
        return 1 / (1 + math.exp(-self.log_odds))

    def seen(self, *, read: bool) -> "Belief":
        """One more pause that was longer than the short lifetime and shorter than the long one."""
        likely = (HIT_IF_TRUE, HIT_IF_FALSE) if read else (1 - HIT_IF_TRUE, 1 - HIT_IF_FALSE)
        odds = self.log_odds + math.log(likely[0] / likely[1])
        return Belief(max(-LOG_ODDS_MAX, min(LOG_ODDS_MAX, odds)), read=self.read + read, lost=self.lost + (not read))

    def __add__(self, other: "Belief") -> "Belief":
        """What both have seen, one after the other."""
        odds = max(-LOG_ODDS_MAX, min(LOG_ODDS_MAX, self.log_odds + other.log_odds))
        return Belief(odds, self.read + other.read, self.lost + other.lost)
