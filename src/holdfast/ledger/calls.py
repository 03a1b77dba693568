"""Every model call of a session: what it sent, read, wrote and cost."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import NamedTuple

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import uncached_cost_usd
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    CacheKept,
    CachePinged,
    DelegationCompleted,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    MessagesWithdrawn,
    ModelSwitched,
    RequestPrepared,
)
from holdfast.events.payloads_compaction import ContextCompacted


class CallRecord(msgspec.Struct, frozen=True):
    """`blocks_shared` of the `blocks_before` of the call before stood in this call too, byte for byte."""

    number: int
    at: float
    request_id: str
    model: str
    usage: Usage
    cost_usd: Decimal
    latency_ms: int
    completed: bool
    blocks_shared: int
    blocks_before: int
    moved_layer: str | None
    moved_byte: int | None

    @property
    def prefix_held(self) -> bool:
        return self.blocks_shared >= self.blocks_before


def calls(events: Iterable[Event]) -> Iterator[CallRecord]:
    """The calls that a provider has taken money for, in the order in which they ended, however they overlapped.

    They were completed, or broken off after the provider had begun.
    """
    chain: list[Link] = []
    newest = _Sent(0, None)
    sent: dict[str, _Sent] = {}
    number = answered = 0
    for event in events:
        match event.payload:
            case RequestPrepared() as it:
                newest = _Sent(len(chain), it)
                del chain[it.shared_blocks :]
                chain += it.links
            case ModelSwitched():
                # Another model has another cache: there is nothing that could have moved.
                chain.clear()
            case ContextCompacted(kept_blocks=kept):
                # It was told before it was sent: nothing has moved by accident.
                del chain[kept:]
                answered = min(answered, kept)
            case MessagesWithdrawn():
                # The provider took nothing of what was refused.
                del chain[answered:]
            case LlmCallStarted(request_id=request_id):
                sent[request_id] = newest
            case LlmCallCompleted() | LlmCallFailed() as it:
                request = sent.pop(it.request_id, newest)
                answered = len(chain) if isinstance(it, LlmCallCompleted) else answered
                if it.usage != Usage() or isinstance(it, LlmCallCompleted):
                    number += 1
                    yield _record(number, event.at, it, request)
            case _:
                pass


class _Sent(NamedTuple):
    """A request, and how many blocks the one before it had."""

    blocks_before: int
    prepared: RequestPrepared | None


def _record(number: int, at: float, it: LlmCallCompleted | LlmCallFailed, request: _Sent) -> CallRecord:
    before, prepared = request
    shared = prepared.shared_blocks if prepared else 0
    moved = prepared.links[0] if prepared and prepared.links and shared < before else None
    return CallRecord(
        number=number,
        at=at,
        request_id=it.request_id,
        model=it.model,
        usage=it.usage,
        cost_usd=it.cost_usd,
        latency_ms=it.latency_ms,
        completed=isinstance(it, LlmCallCompleted),
        blocks_shared=shared,
        blocks_before=before,
        moved_layer=moved.layer if moved else None,
        moved_byte=moved.start if moved else None,
    )


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
