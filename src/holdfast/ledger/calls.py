"""Every model call of a session: what it sent, read, wrote and cost."""

from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import uncached_cost_usd
from holdfast.events.envelope import Event
from holdfast.events.payloads import CacheKept, CachePinged, DelegationCompleted
from holdfast.ledger.books import CallRecord, entries

__all__ = ["Bill", "CallRecord", "bill", "calls", "delegated", "keeping_cost_usd", "pinging_cost_usd"]


def calls(events: Iterable[Event]) -> Iterator[CallRecord]:
    """The calls that a provider has taken money for, in the order in which they ended, however they overlapped."""
    return (entry.record for entry in entries(events, {}))


def keeping_cost_usd(events: Iterable[Event]) -> Decimal:
    """What it cost to make caches under a name and to store them; no call's cost holds any of it."""
    kept = (event.payload for event in events)
    return sum((it.cost_usd + it.storage_cost_usd for it in kept if isinstance(it, CacheKept)), Decimal(0))


def pinging_cost_usd(events: Iterable[Event]) -> Decimal:
    """What requests cost that asked for nothing; they are no calls, and no call's cost holds any of it."""
    return sum((event.payload.cost_usd for event in events if isinstance(event.payload, CachePinged)), Decimal(0))


def delegated(events: Iterable[Event]) -> tuple[DelegationCompleted, ...]:
    """Sessions that worked for this one; their cost is a part of its own, and their calls are on their own logs."""
    return tuple(event.payload for event in events if isinstance(event.payload, DelegationCompleted))


class Bill(msgspec.Struct, frozen=True):
    """What a session took, and what the same calls would have cost without a cache.

    `keeping_cost_usd`, a part of the cost, went into caches under a name: making and storing them.
    """

    calls: int
    usage: Usage
    cost_usd: Decimal
    uncached_cost_usd: Decimal
    keeping_cost_usd: Decimal = Decimal(0)

    @property
    def saved_usd(self) -> Decimal:
        return self.uncached_cost_usd - self.cost_usd


def bill(records: Iterable[CallRecord], model: Model, *, keeping_usd: Decimal = Decimal(0)) -> Bill:
    count, usage, cost, uncached = 0, Usage(), keeping_usd, Decimal(0)
    for record in records:
        count += 1
        usage += record.usage
        cost += record.cost_usd
        uncached += uncached_cost_usd(record.usage, price_at(model, utc_date(record.at), record.usage.tokens_sent))
    return Bill(count, usage, cost, uncached, keeping_usd)
