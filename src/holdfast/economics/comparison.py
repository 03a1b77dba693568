"""Two ways to go on, and what each costs."""

from decimal import Decimal

import msgspec

Amount = Decimal | float
"""A count, a share or an expectation: whole or not."""


class Comparison(msgspec.Struct, frozen=True):
    """What two alternatives cost, in uncached input tokens unless said otherwise; true if the first is cheaper."""

    first_units: Decimal
    second_units: Decimal

    def __bool__(self) -> bool:
        return self.first_units < self.second_units

    @property
    def saved_units(self) -> Decimal:
        """What the first saves; below 0, what it costs too much."""
        return self.second_units - self.first_units


def exact(amount: Amount) -> Decimal:
    return amount if isinstance(amount, Decimal) else Decimal(amount)


def arithmetic_sum(start: int, stop: int) -> int:
    """start + (start + 1) + ... + (stop - 1); 0 if there is none."""
    return (start + stop - 1) * (stop - start) // 2 if stop > start else 0
