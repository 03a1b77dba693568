"""Sums of the replay costs of many recordings, per policy."""

from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.replay.compare import Comparison
from holdfast.replay.likeness import Likeness


class PolicyRow(msgspec.Struct, frozen=True):
    policy: str
    cost_usd: float
    read_share: float
    to_best: float
    to_bound: float
    to_optimum: float
    pings: int
    cold_calls: int


class Report(msgspec.Struct, frozen=True):
    conversations: int
    calls: int
    broken_lines: int
    bound_usd: float
    optimum_usd: float
    policies: tuple[PolicyRow, ...]
    likeness: Likeness | None = None
    compactions: int = 0


class Totals:
    """Accumulates comparisons."""

    def __init__(self) -> None:
        self.recordings = 0
        self.calls = 0
        self.broken = 0
        self.compactions = 0
        self.bound_usd = 0.0
        self.optimum_usd = 0.0
        self.likeness: Likeness | None = None
        self.cost_usd: dict[str, Decimal] = {}
        self._usage: dict[str, Usage] = {}
        self._pings: dict[str, int] = {}
        self._cold: dict[str, int] = {}

    def add(self, comparison: Comparison, likeness: Likeness | None, calls: int) -> None:
        self.recordings += 1
        self.calls += calls
        self.bound_usd += comparison.bound_usd
        self.optimum_usd += comparison.optimum_usd
        if likeness is not None:
            self.likeness = likeness if self.likeness is None else self.likeness + likeness
        for played in comparison.played:
            name = played.policy
            self.cost_usd[name] = self.cost_usd.get(name, Decimal(0)) + played.cost_usd
            self._usage[name] = self._usage.get(name, Usage()) + played.usage
            self._pings[name] = self._pings.get(name, 0) + sum(call.ping for call in played.calls)
            self._cold[name] = self._cold.get(name, 0) + sum(call.cold for call in played.calls)

    def report(self) -> Report:
        best = min(self.cost_usd.values(), default=Decimal(0))
        rows = tuple(
            PolicyRow(
                policy=name,
                cost_usd=float(cost),
                read_share=self._usage[name].read_share,
                to_best=_ratio(float(cost), float(best)),
                to_bound=_ratio(float(cost), self.bound_usd),
                to_optimum=_ratio(float(cost), self.optimum_usd),
                pings=self._pings[name],
                cold_calls=self._cold[name],
            )
            for name, cost in self.cost_usd.items()
        )
        return Report(
            self.recordings,
            self.calls,
            self.broken,
            self.bound_usd,
            self.optimum_usd,
            rows,
            self.likeness,
            self.compactions,
        )


def _ratio(cost: float, reference: float) -> float:
    """1 if the reference is free."""
    return cost / reference if reference else 1.0
