"""The cost of a call in dollars, and a price's multipliers relative to uncached input."""

from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import Price

_MILLION = Decimal(1_000_000)


class Multipliers(msgspec.Struct, frozen=True):
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


def multipliers(price: Price) -> Multipliers:
    def relative(rate: Decimal) -> Decimal:
        return rate / price.input if price.input else Decimal(0)

    return Multipliers(
        read=relative(price.cache_read),
        write_5m=relative(price.cache_write_5m),
        write_1h=relative(price.cache_write_1h),
        write_other=relative(price.cache_write_other),
    )
