"""What a call cost, in dollars and in units of one uncached input token."""

from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import Price

_MILLION = Decimal(1_000_000)


class Multipliers(msgspec.Struct, frozen=True):
    """What a prompt token costs relative to an uncached one; all 0 where plain input is free."""

    read: Decimal
    write_5m: Decimal
    write_1h: Decimal
    write_other: Decimal


def cost_usd(usage: Usage, price: Price) -> Decimal:
    """Exact: the tokens of each bucket times its rate."""
    return (
        usage.input * price.input
        + usage.cache_read * price.cache_read
        + usage.cache_write_5m * price.cache_write_5m
        + usage.cache_write_1h * price.cache_write_1h
        + usage.cache_write_other * price.cache_write_other
        + usage.output * price.output
    ) / _MILLION


def uncached_cost_usd(usage: Usage, price: Price) -> Decimal:
    """What the same call would have cost with no cache at all."""
    return (usage.tokens_sent * price.input + usage.output * price.output) / _MILLION


def storage_usd(tokens: int, seconds: float, price: Price) -> Decimal:
    """What it costs to keep so many tokens for so long, where the provider sells that."""
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


def cost_in_units(usage: Usage, price: Price) -> Decimal:
    """What the prompt cost, in uncached input tokens. Output is left out: no mark or lifetime changes it."""
    times = multipliers(price)
    return (
        usage.input
        + usage.cache_read * times.read
        + usage.cache_write_5m * times.write_5m
        + usage.cache_write_1h * times.write_1h
        + usage.cache_write_other * times.write_other
    )
