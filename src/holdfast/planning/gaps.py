"""How long a session is silent between two calls: counted in steps of the logarithm, from few examples."""

import bisect
import functools
import itertools
import operator
from collections.abc import Iterable
from typing import Literal

import msgspec

Awaited = Literal["tool", "person"]

EDGES_SECONDS = (
    *(285.0, 300.0, 450.0, 600.0, 900.0, 1200.0, 1800.0, 2400.0, 3300.0, 3600.0),
    *(5400.0, 7200.0, 14400.0, 28800.0, 86400.0),
)
"""Where one count ends and the next begins. Whatever is shorter than the first is of no interest to a cache."""

_SPANS = tuple(itertools.pairwise((0.0, *EDGES_SECONDS, EDGES_SECONDS[-1] * 4)))

PRIOR_CALLS = 20.0
"""How many calls of other sessions weigh as much as everything that is known before any."""

PRIOR_LONG_SHARE = 0.03
"""How many gaps are long, before anything is known: one in thirty-three."""

SEED_CALLS_MAX = 200.0
"""How many calls of earlier sessions the past counts for, at most, beside the session's own."""


class Gaps(msgspec.Struct, frozen=True):
    """How many gaps fell between two edges; `counts[0]` are the short ones. Numbers need not be whole: they fade."""

    counts: tuple[float, ...] = (0.0,) * (len(EDGES_SECONDS) + 1)

    @property
    def total(self) -> float:
        return sum(self.counts)

    def add(self, seconds: float) -> "Gaps":
        place = bisect.bisect_right(EDGES_SECONDS, seconds)
        return Gaps((*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :]))

    def scaled(self, total_max: float) -> "Gaps":
        """The same shares, but no more in all than so many."""
        if self.total <= total_max:
            return self
        return Gaps(tuple(count * total_max / self.total for count in self.counts))

    def __add__(self, other: "Gaps") -> "Gaps":
        return Gaps(tuple(map(operator.add, self.counts, other.counts)))

    def chance(self, above_seconds: float, upto_seconds: float, *, given_seconds: float = 0.0) -> float:
        """How likely a gap is to end in (above, upto], if it has lasted for `given_seconds` already."""
        left = self._weight(given_seconds, float("inf")) if given_seconds > 0 else self.total
        return self._weight(max(above_seconds, given_seconds), upto_seconds) / left if left > 0 else 0.0

    def _weight(self, above: float, upto: float) -> float:
        weight = 0.0
        for count, (start, end) in zip(self.counts, _SPANS, strict=True):
            if start < upto and end > above:
                inside = above <= start and end <= upto
                weight += count if inside else count * (min(upto, end) - max(above, start)) / (end - start)
        return weight


@functools.cache
def prior() -> Gaps:
    """What is taken to hold of a session of which nothing is known: long gaps are rare, of any length alike, and one
    more is its end."""
    long = PRIOR_CALLS * PRIOR_LONG_SHARE / len(EDGES_SECONDS)
    return Gaps((PRIOR_CALLS * (1 - PRIOR_LONG_SHARE), *(long,) * len(EDGES_SECONDS))).add(float("inf"))


def expected(own: Gaps, others: Gaps) -> Gaps:
    """The gaps to expect of a session: its own, those of sessions before it, and a little of everything."""
    return own + _seed(others)


@functools.lru_cache(maxsize=64)
def _seed(others: Gaps) -> Gaps:
    """What a session starts with; the same for all its calls."""
    return others.scaled(SEED_CALLS_MAX) + prior()


class Rhythm(msgspec.Struct, frozen=True):
    """The gaps of a session, apart by what was waited for: a tool returns soon, a person when it suits."""

    tool: Gaps = Gaps()
    person: Gaps = Gaps()

    @property
    def all(self) -> Gaps:
        return self.tool + self.person

    def of(self, waits_for: Awaited) -> Gaps:
        return self.tool if waits_for == "tool" else self.person

    def add(self, seconds: float, waited_for: Awaited) -> "Rhythm":
        if waited_for == "tool":
            return Rhythm(self.tool.add(seconds), self.person)
        return Rhythm(self.tool, self.person.add(seconds))

    def scaled(self, total_max: float) -> "Rhythm":
        """The same shares, but no more in all than so many."""
        total = self.tool.total + self.person.total
        if total <= total_max:
            return self
        return Rhythm(*(gaps.scaled(gaps.total * total_max / total) for gaps in (self.tool, self.person)))

    def __add__(self, other: "Rhythm") -> "Rhythm":
        return Rhythm(self.tool + other.tool, self.person + other.person)


def counted(gaps: Iterable[float]) -> Gaps:
    found = Gaps()
    for seconds in gaps:
        found = found.add(seconds)
    return found
