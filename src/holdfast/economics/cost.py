"""The cost of a call in dollars, prices relative to uncached input, and the comparison of two alternatives."""

from decimal import Decimal

import msgspec

from holdfast.catalog.schema import Price
from holdfast.types.usage import Usage

_MILLION = Decimal(1_000_000)  # Prices are US dollars per million tokens.

# A count, a share or an expected value; not necessarily whole.
Amount = Decimal | float


class PriceMultipliers(msgspec.Struct, frozen=True):
    """Cost of a prompt token relative to an uncached one; all 0 where uncached input is free."""

    read: Decimal
    write_5m: Decimal
    write_1h: Decimal
    write_other: Decimal


def cost_usd(usage: Usage, price: Price) -> Decimal:
    """Exact: usage buckets are disjoint, so the cost is the sum of each bucket's tokens times its rate."""
    return (
        usage.input * price.input
        + usage.cache_read * price.cache_read
        + usage.cache_write_5m * price.cache_write_5m
        + usage.cache_write_1h * price.cache_write_1h
        + usage.cache_write_other * price.cache_write_other
        + usage.output * price.output
    ) / _MILLION


def uncached_cost_usd(usage: Usage, price: Price) -> Decimal:
    """Cost of the same call without any caching."""
    return (usage.tokens_sent * price.input + usage.output * price.output) / _MILLION


def storage_usd(tokens: int, seconds: float, price: Price) -> Decimal:
    """Storage cost of an explicit cache; providers quote it per million tokens and hour."""
    return tokens * price.storage_per_hour * Decimal(str(seconds)) / 3600 / _MILLION


def price_multipliers(price: Price) -> PriceMultipliers:
    def relative(rate: Decimal) -> Decimal:
        return rate / price.input if price.input else Decimal(0)

    return PriceMultipliers(
        read=relative(price.cache_read),
        write_5m=relative(price.cache_write_5m),
        write_1h=relative(price.cache_write_1h),
        write_other=relative(price.cache_write_other),
    )


class CostComparison(msgspec.Struct, frozen=True):
    """Costs of two alternatives, in uncached input tokens unless stated otherwise; truthy if the first is cheaper."""

    first_units: Decimal
    second_units: Decimal

    def __bool__(self) -> bool:
        return self.first_units < self.second_units

    @property
    def saved_units(self) -> Decimal:
        """What the first alternative saves over the second; negative if it costs more."""
        return self.second_units - self.first_units


def to_decimal(amount: Amount) -> Decimal:
    return amount if isinstance(amount, Decimal) else Decimal(amount)


def arithmetic_sum(start: int, stop: int) -> int:
    """start + (start + 1) + ... + (stop - 1); 0 for an empty range."""
    return (start + stop - 1) * (stop - start) // 2 if stop > start else 0
