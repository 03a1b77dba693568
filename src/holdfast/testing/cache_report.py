"""Reports what a test and a whole run read from the cache, spent and saved."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec
import pytest

from holdfast.testing.limits import Limits
from holdfast.testing.simulated_provider import ServedProvider, Spending, sum_spending
from holdfast.types.usage import Usage

CALLS_TO_READ_MIN = 2  # The first call writes the cache; only a second one can read it.
ROWS_MAX = 30


class CacheReport:
    """The test's spending so far, from the simulator's usage and the catalog's prices."""

    def __init__(self, provider: ServedProvider) -> None:
        self._provider = provider

    @property
    def spending(self) -> Spending:
        return sum_spending(self._provider.calls)

    @property
    def calls(self) -> int:
        return self.spending.calls

    @property
    def usage(self) -> Usage:
        return self.spending.usage

    @property
    def read_share(self) -> float:
        """The share of all prompt tokens that was read from the cache, from 0 to 1."""
        return self.spending.read_share

    @property
    def cost_usd(self) -> Decimal:
        return self.spending.cost_usd

    @property
    def saved_usd(self) -> Decimal:
        """Compared with the same calls without a cache."""
        return self.spending.saved_usd


def check_read_share(spent: Spending, limits: Limits) -> None:
    """Fail a test that reads too small a share. A single call has nothing to read."""
    share_min = limits.read_share_min
    if share_min is None or spent.calls < CALLS_TO_READ_MIN or spent.read_share >= share_min:
        return
    pytest.fail(
        f"{spent.read_share:.1%} of the prompts were read from the cache, less than {share_min:.1%} "
        f"(--holdfast-min-read-share): {spent.usage.cache_read} of {spent.usage.tokens_sent} tokens in {spent.calls} "
        "calls; prompts below the model's cache floor, or without the breakpoints that it needs, are never cached",
        pytrace=False,
    )


def describe_over_cost(rows: Sequence[tuple[str, Spending]], limits: Limits) -> str | None:
    """The error message for a run that cost too much; None otherwise."""
    total = _sum(rows)
    if limits.cost_usd_max is None or total.cost_usd <= limits.cost_usd_max:
        return None
    test, highest = max(rows, key=lambda row: row[1].cost_usd)
    return (
        f"the run cost ${total.cost_usd:.6f}, more than ${limits.cost_usd_max} (--holdfast-max-cost); "
        f"the most expensive test is {test}: ${highest.cost_usd:.6f}"
    )


def format_spending_table(rows: Sequence[tuple[str, Spending]]) -> list[str]:
    """One line per test, the most expensive first, and a total."""
    ordered = sorted(rows, key=lambda row: (-row[1].cost_usd, row[0]))
    lines = [f"{'calls':>6} {'read':>7} {'cost':>11} {'saved':>11}  test"]
    lines += [_row(spent, test) for test, spent in ordered[:ROWS_MAX]]
    if len(ordered) > ROWS_MAX:
        lines.append(_row(_sum(ordered[ROWS_MAX:]), f"{len(ordered) - ROWS_MAX} more"))
    return [*lines, _row(_sum(ordered), "total")] if len(ordered) > 1 else lines


def _sum(rows: Sequence[tuple[str, Spending]]) -> Spending:
    return sum((spent for _, spent in rows), Spending())


def _row(spent: Spending, test: str) -> str:
    saved = f"{'-' if spent.saved_usd < 0 else ''}${abs(spent.saved_usd):.6f}"
    return f"{spent.calls:>6} {spent.read_share:>7.1%} {f'${spent.cost_usd:.6f}':>11} {saved:>11}  {test}"


def pack_spending(spent: Spending) -> object:
    """The spending as plain JSON types, as a pytest-xdist worker sends it to the main process."""
    return msgspec.to_builtins(spent)


def unpack_spending(value: Mapping[str, object]) -> Spending:
    return msgspec.convert(value, Spending, strict=False)
