"""The cost of two alternatives, and which one is cheaper."""

from decimal import Decimal

import msgspec

Amount = Decimal | float
"""A count, a share or an expected value; not necessarily whole."""


class Comparison(msgspec.Struct, frozen=True):
    """Costs of two alternatives, in uncached input tokens unless stated otherwise; truthy if the first is cheaper."""

    first_units: Decimal
    second_units: Decimal

    def __bool__(self) -> bool:
        return self.first_units < self.second_units

    @property
    def saved_units(self) -> Decimal:
        """What the first alternative saves over the second; negative if it costs more."""
        return self.second_units - self.first_units


def exact(amount: Amount) -> Decimal:
    return amount if isinstance(amount, Decimal) else Decimal(amount)


def arithmetic_sum(start: int, stop: int) -> int:
    """start + (start + 1) + ... + (stop - 1); 0 for an empty range."""
    return (start + stop - 1) * (stop - start) // 2 if stop > start else 0
