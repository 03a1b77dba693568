"""Whether a 1-hour write also extends the TTL of the 5-minute prefix before it; undocumented, so learned from usage."""

import math

import msgspec

HIT_IF_TRUE = 0.85
HIT_IF_FALSE = 0.03
"""Probability that the first call after a pause reads an anchor, if TTLs upgrade and if they do not.

Neither is certain: caches are evicted early now and then, and requests reach different servers. One observation changes
the log odds by ln(0.85 / 0.03) = 3.3 or by ln(0.15 / 0.97) = -1.9.
"""

LOG_ODDS_MAX = 6.0
"""Bound on the log odds (a probability of 0.9975), so that a few contrary calls are enough to reverse it."""


class Belief(msgspec.Struct, frozen=True):
    """The evidence for one model and route: how many anchors were `read` after a pause and how many were `lost`.

    Log odds of 0 (even) to begin with: nothing is known.
    """

    log_odds: float = 0.0
    read: int = 0
    lost: int = 0

    @property
    def chance(self) -> float:
        """Probability that TTLs upgrade: the logistic function of the log odds."""
        return 1 / (1 + math.exp(-self.log_odds))

    def seen(self, *, read: bool) -> "Belief":
        """Add one pause that was longer than the short TTL and shorter than the long one."""
        # Bayes' rule in log odds: add ln(P(observation | upgrades) / P(observation | no upgrades)).
        if_true, if_false = (HIT_IF_TRUE, HIT_IF_FALSE) if read else (1 - HIT_IF_TRUE, 1 - HIT_IF_FALSE)
        log_odds = self.log_odds + math.log(if_true / if_false)
        return Belief(_bounded(log_odds), read=self.read + read, lost=self.lost + (not read))

    def __add__(self, other: "Belief") -> "Belief":
        """The evidence of both; independent observations add up in log odds."""
        return Belief(_bounded(self.log_odds + other.log_odds), self.read + other.read, self.lost + other.lost)


def _bounded(log_odds: float) -> float:
    return max(-LOG_ODDS_MAX, min(LOG_ODDS_MAX, log_odds))
