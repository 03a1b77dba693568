"""Idle times between two calls of a session, as a histogram that works from few samples."""

import bisect
import functools
import itertools
import operator
from collections.abc import Iterable
from typing import Literal

import msgspec

WaitsFor = Literal["tool", "user"]

# Bucket edges, about evenly spaced on a logarithmic scale. The TTLs (300 s, 3,600 s) are edges, and so is the time of
# the first short ping (285 s): the questions asked most need no interpolation. Shorter idle times share one bucket,
# because every cache survives them.
EDGES_SECONDS = (
    *(285.0, 300.0, 450.0, 600.0, 900.0, 1200.0, 1800.0, 2400.0, 3300.0, 3600.0),
    *(5400.0, 7200.0, 14400.0, 28800.0, 86400.0),
)

# The last bucket has no end; for interpolation it is taken to end after four days.
_SPANS = tuple(itertools.pairwise((0.0, *EDGES_SECONDS, EDGES_SECONDS[-1] * 4)))

# How many calls of other sessions weigh as much as the prior.
PRIOR_CALLS = 20.0

# Prior share of idle times over 285 s: one in thirty-three, not fitted to any recording (docs/decisions/0017).
PRIOR_LONG_SHARE = 0.03

# How many calls the history of earlier sessions may count for, so that a session's own idle times can outweigh it.
HISTORY_CALLS_MAX = 200.0


class IdleTimes(msgspec.Struct, frozen=True):
    """A histogram of idle times; `counts[0]` is the bucket below the first edge. Scaling makes counts fractional."""

    counts: tuple[float, ...] = (0.0,) * (len(EDGES_SECONDS) + 1)

    @property
    def total(self) -> float:
        return sum(self.counts)

    def add(self, seconds: float) -> "IdleTimes":
        bucket = bisect.bisect_right(EDGES_SECONDS, seconds)
        return IdleTimes((*self.counts[:bucket], self.counts[bucket] + 1, *self.counts[bucket + 1 :]))

    def scaled_to(self, total_max: float) -> "IdleTimes":
        """The same distribution, scaled down to at most `total_max` samples."""
        if self.total <= total_max:
            return self
        return IdleTimes(tuple(count * total_max / self.total for count in self.counts))

    def __add__(self, other: "IdleTimes") -> "IdleTimes":
        return IdleTimes(tuple(map(operator.add, self.counts, other.counts)))

    def probability(self, above_seconds: float, upto_seconds: float, *, given_seconds: float = 0.0) -> float:
        """Probability that an idle time ends in (above, upto], given that it has lasted `given_seconds` already."""
        # P(a < G <= b | G > c) = weight(max(a, c), b) / weight(c, inf).
        remaining = self._weight(given_seconds, float("inf")) if given_seconds > 0 else self.total
        return self._weight(max(above_seconds, given_seconds), upto_seconds) / remaining if remaining > 0 else 0.0

    def _weight(self, above: float, upto: float) -> float:
        """The number of samples in (above, upto]; within a bucket they are assumed to be spread evenly."""
        weight = 0.0
        for bucket, width, span in _overlap_buckets(above, upto):
            weight += self.counts[bucket] * width / span
        return weight


@functools.lru_cache(maxsize=256)
def _overlap_buckets(above: float, upto: float) -> tuple[tuple[int, float, float], ...]:
    """Each bucket that overlaps (above, upto], with the width of the overlap and of the bucket.

    The questions asked at every call are always the same few.
    """
    overlaps = []
    for bucket, (start, end) in enumerate(_SPANS):
        if start < upto and end > above:
            inside = above <= start and end <= upto
            overlaps.append((bucket, 1.0, 1.0) if inside else (bucket, min(upto, end) - max(above, start), end - start))
    return tuple(overlaps)


@functools.cache
def prior_idle_times() -> IdleTimes:
    """The assumption for an unknown session: long idle times are rare and equally likely in every bucket, and one in
    `PRIOR_CALLS` + 1 is infinite because the session ends."""
    long = PRIOR_CALLS * PRIOR_LONG_SHARE / len(EDGES_SECONDS)
    return IdleTimes((PRIOR_CALLS * (1 - PRIOR_LONG_SHARE), *(long,) * len(EDGES_SECONDS))).add(float("inf"))


def expected_idle_times(own: IdleTimes, others: IdleTimes) -> IdleTimes:
    """The distribution to plan with: the session's own idle times, those of earlier sessions, and the prior."""
    return own + _seed(others)


@functools.lru_cache(maxsize=64)
def _seed(others: IdleTimes) -> IdleTimes:
    """What a session starts with; cached because it is the same for all of the session's calls."""
    return others.scaled_to(HISTORY_CALLS_MAX) + prior_idle_times()


class IdleTimesByCause(msgspec.Struct, frozen=True):
    """A session's idle times, split by what it waited for: tools return soon, people return when it suits them."""

    tool: IdleTimes = IdleTimes()
    user: IdleTimes = IdleTimes()

    @property
    def all(self) -> IdleTimes:
        return self.tool + self.user

    def waiting_for(self, waits_for: WaitsFor) -> IdleTimes:
        return self.tool if waits_for == "tool" else self.user

    def add(self, seconds: float, waited_for: WaitsFor) -> "IdleTimesByCause":
        if waited_for == "tool":
            return IdleTimesByCause(self.tool.add(seconds), self.user)
        return IdleTimesByCause(self.tool, self.user.add(seconds))

    def scaled_to(self, total_max: float) -> "IdleTimesByCause":
        """The same distributions, scaled down to at most `total_max` samples in both together."""
        total = self.tool.total + self.user.total
        if total <= total_max:
            return self
        scaled = (times.scaled_to(times.total * total_max / total) for times in (self.tool, self.user))
        return IdleTimesByCause(*scaled)

    def __add__(self, other: "IdleTimesByCause") -> "IdleTimesByCause":
        return IdleTimesByCause(self.tool + other.tool, self.user + other.user)


def count_idle_times(idle_times: Iterable[float]) -> IdleTimes:
    histogram = IdleTimes()
    for seconds in idle_times:
        histogram = histogram.add(seconds)
    return histogram
