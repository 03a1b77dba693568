"""The model calls of a session and its bill: what was sent, read, written and paid."""

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
    """The calls that a provider charged for, in the order in which they ended, however they overlapped."""
    return (entry.record for entry in entries(events, {}))


def keeping_cost_usd(events: Iterable[Event]) -> Decimal:
    """The cost of creating and storing explicit caches; it is not part of any call's cost."""
    payloads = (event.payload for event in events)
    return sum(
        (payload.cost_usd + payload.storage_cost_usd for payload in payloads if isinstance(payload, CacheKept)),
        Decimal(0),
    )


def pinging_cost_usd(events: Iterable[Event]) -> Decimal:
    """The cost of keep-alive and prewarm pings; they are not calls, and no call's cost includes them."""
    return sum((event.payload.cost_usd for event in events if isinstance(event.payload, CachePinged)), Decimal(0))


def delegated(events: Iterable[Event]) -> tuple[DelegationCompleted, ...]:
    """Sessions that worked for this one. Their cost is part of this session's; their calls are on their own logs."""
    return tuple(event.payload for event in events if isinstance(event.payload, DelegationCompleted))


class Bill(msgspec.Struct, frozen=True):
    """What a session cost, and what the same calls would have cost without a cache.

    `explicit_cache_cost_usd`, which is part of the cost, is for creating and storing explicit caches.
    """

    calls: int
    usage: Usage
    cost_usd: Decimal
    uncached_cost_usd: Decimal
    keeping_cost_usd: Decimal = Decimal(0)

    @property
    def saved_usd(self) -> Decimal:
        # Negative if the cache writes and explicit caches cost more than the reads saved.
        return self.uncached_cost_usd - self.cost_usd


def bill(records: Iterable[CallRecord], model: Model, *, keeping_usd: Decimal = Decimal(0)) -> Bill:
    # Explicit caches count as cost only: without a cache they would not exist.
    count, usage, cost, uncached = 0, Usage(), keeping_usd, Decimal(0)
    for record in records:
        count += 1
        usage += record.usage
        cost += record.cost_usd
        # Some models charge more above a prompt size, so each call is priced with its own row.
        uncached += uncached_cost_usd(record.usage, price_at(model, utc_date(record.at), record.usage.tokens_sent))
    return Bill(count, usage, cost, uncached, keeping_usd)
