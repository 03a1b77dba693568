"""Selects the cache policies that a command compares, and prints their costs."""

from collections.abc import Iterable

from holdfast.cli.tables import show_table
from holdfast.errors import UserError
from holdfast.planning.memory import Learned
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Policy
from holdfast.planning.rivals import compared
from holdfast.replay.totals import PolicyRow

ALL = "all"


class Roster:
    """Creates fresh policies for each conversation; only ours keeps what it learned from the previous ones."""

    def __init__(self, wanted: str = ALL, *, keep_alive: bool = False) -> None:
        names = (OurPolicy.name, *compared())
        if wanted not in (ALL, *names):
            raise UserError(f"unknown policy {wanted[:60]!r}; known policies: {', '.join(names)}")
        self._wanted, self._keep_alive = wanted, keep_alive
        self._ours = OurPolicy(Learned(), keep_alive=keep_alive)

    def fresh(self) -> tuple[Policy, ...]:
        # Real sessions start with learned parameters too; the other policies learn nothing.
        self._ours = OurPolicy(self._ours.learned(), keep_alive=self._keep_alive)
        policies: dict[str, Policy] = {OurPolicy.name: self._ours, **compared()}
        return tuple(policies.values()) if self._wanted == ALL else (policies[self._wanted],)


def show_policies(policies: Iterable[PolicyRow]) -> None:
    """Cheapest first."""
    rows = sorted(policies, key=lambda row: row.cost_usd)
    show_table(
        ("policy", "cost", "read share", "vs best", "vs bound", "vs optimum", "pings", "misses"),
        (
            (
                row.policy,
                f"${row.cost_usd:.4f}",
                f"{row.read_share:.2%}",
                f"{row.to_best:.3f}",
                f"{row.to_bound:.3f}",
                f"{row.to_optimum:.3f}",
                str(row.pings),
                str(row.cold_calls),
            )
            for row in rows
        ),
    )
