"""What an amount, a count and a time are in the books: whole numbers within bounds, whatever an event says.

Money is counted in picodollars. A price is dollars per million tokens with six digits behind the point at most, so
that tokens times price is a whole number of them; what a provider stores by the second is rounded to the nearest. A
64-bit sum of them holds nine million dollars.
"""

import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from msgspec.structs import replace

from holdfast.canonical.usage import TOKENS_MAX, Usage, counted
from holdfast.catalog.lookup import utc_date
from holdfast.events.envelope import Event
from holdfast.events.payloads import CacheKept, CachePinged, LlmCallCompleted, LlmCallFailed

USD_MAX = Decimal(1_000)
"""More than this no single event has cost: a larger amount is a mistake, and would spoil all sums it is a part of."""

NAME_CHARACTERS_MAX = 200
INTEGER_MAX = 2**62
LATENCY_MS_MAX = 2**31 - 1
AT_MAX = 253_402_300_799.0
"""The last second that has a date."""

_PICO = 12
_PER_DOLLAR = Decimal(10) ** _PICO


def picodollars(usd: Decimal) -> int:
    within = min(max(usd, -USD_MAX), USD_MAX)
    return int(within.scaleb(_PICO).to_integral_value(ROUND_HALF_EVEN))


def dollars(pico: int) -> Decimal:
    """Exact, and spelled in one way."""
    return Decimal(pico) / _PER_DOLLAR


def rounded(usd: Decimal) -> Decimal:
    """The amount as it is booked; itself, where that is the same number."""
    return usd if is_booked(usd) else dollars(picodollars(usd))


def is_booked(usd: Decimal) -> bool:
    """Whether an amount can be booked as it is."""
    return -USD_MAX <= usd <= USD_MAX and usd.scaleb(_PICO) % 1 == 0


def integer(number: int) -> int:
    return min(max(number, -INTEGER_MAX), INTEGER_MAX)


def day_of(at: float) -> str:
    return utc_date(at).isoformat()


def day_start(day: str) -> float:
    return datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC).timestamp()


def bounded(event: Event) -> Event:
    """The event as it can be booked: with a date, and without a number or a name that no table holds."""
    at = min(max(event.at, 0.0), AT_MAX)
    if at != event.at:
        event = replace(event, at=at)
    match event.payload:
        case LlmCallCompleted() | LlmCallFailed() as it if _fits(it):
            return event
        case LlmCallCompleted() | LlmCallFailed() as it:
            latency = min(max(it.latency_ms, 0), LATENCY_MS_MAX)
            ended = replace(
                it, **_costs(it), latency_ms=latency, retry_count=integer(it.retry_count), provider=_name(it.provider)
            )
            return replace(event, payload=ended)
        case CachePinged() as it:
            return replace(event, payload=replace(it, **_costs(it)))
        case CacheKept() as it:
            costs = {"cost_usd": rounded(it.cost_usd), "storage_cost_usd": rounded(it.storage_cost_usd)}
            return replace(event, payload=replace(it, model=_name(it.model), **costs))
        case _:
            return event


def _fits(it: LlmCallCompleted | LlmCallFailed) -> bool:
    buckets = _buckets(it.usage)
    numbers = min(buckets) >= 0 and max(buckets) <= TOKENS_MAX and 0 <= it.latency_ms <= LATENCY_MS_MAX
    names = len(it.model) <= NAME_CHARACTERS_MAX and len(it.provider) <= NAME_CHARACTERS_MAX
    return numbers and names and abs(it.retry_count) <= INTEGER_MAX and is_booked(it.cost_usd)


def _costs(it: LlmCallCompleted | LlmCallFailed | CachePinged) -> dict[str, object]:
    buckets = Usage(*map(counted, _buckets(it.usage)))
    return {"usage": buckets, "cost_usd": rounded(it.cost_usd), "model": _name(it.model)}


def _buckets(usage: Usage) -> tuple[int, ...]:
    return (
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.cache_write_other,
        usage.output,
    )


def _name(name: str) -> str:
    return name[:NAME_CHARACTERS_MAX]
