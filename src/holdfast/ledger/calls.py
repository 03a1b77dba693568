"""The model calls of a session and their cost: the bill of the session, and the cost of each turn."""

from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import uncached_cost_usd
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.session import DelegationCompleted, SessionStarted, TurnStarted
from holdfast.ledger.accounting import CallRecord, find_priced_model, iter_entries, uncached_call_usd
from holdfast.types.usage import Usage


def iter_calls(events: Iterable[Event]) -> Iterator[CallRecord]:
    """The calls that a provider charged for, in the order in which they ended, however they overlapped."""
    return (entry.record for entry in iter_entries(events, {}))


def explicit_cache_cost_usd(events: Iterable[Event]) -> Decimal:
    """The cost of creating and storing explicit caches; it is not part of any call's cost."""
    payloads = (event.payload for event in events)
    changes = (payload for payload in payloads if isinstance(payload, ExplicitCacheChanged))
    return sum((change.cost_usd + change.storage_cost_usd for change in changes), Decimal(0))


def ping_cost_usd(events: Iterable[Event]) -> Decimal:
    """The cost of keep-alive and prewarm pings; they are not calls, and no call's cost includes them."""
    return sum((event.payload.cost_usd for event in events if isinstance(event.payload, CachePinged)), Decimal(0))


def list_delegations(events: Iterable[Event]) -> tuple[DelegationCompleted, ...]:
    """Sessions that worked for this one. Their cost is part of this session's; their calls are on their own logs."""
    return tuple(event.payload for event in events if isinstance(event.payload, DelegationCompleted))


class Bill(msgspec.Struct, frozen=True):
    """What a session cost, and what the same calls would have cost without a cache.

    `explicit_cache_cost_usd`, which is part of the cost, is for creating and storing explicit caches. `unpriced_calls`
    are in `calls` and `usage` but in no sum of money, because no price is known for their model.
    """

    calls: int
    usage: Usage
    cost_usd: Decimal
    uncached_cost_usd: Decimal
    explicit_cache_cost_usd: Decimal = Decimal(0)
    unpriced_calls: int = 0

    @property
    def saved_usd(self) -> Decimal:
        # Negative if the cache writes and explicit caches cost more than the reads saved.
        return self.uncached_cost_usd - self.cost_usd


def compute_bill(records: Iterable[CallRecord], model: Model, *, explicit_cache_usd: Decimal = Decimal(0)) -> Bill:
    # Explicit caches count as cost only: without a cache they would not exist.
    count, usage, cost, uncached = 0, Usage(), explicit_cache_usd, Decimal(0)
    for record in records:
        count += 1
        usage += record.usage
        cost += record.cost_usd
        # Some models charge more above a prompt size, so each call is priced with its own row.
        uncached += uncached_cost_usd(record.usage, price_at(model, utc_date(record.at), record.usage.tokens_sent))
    return Bill(count, usage, cost, uncached, explicit_cache_usd)


def is_simulated(log: EventLog, session_id: str) -> bool:
    """Reads it from the session's first event."""
    first_event = next(iter(log.read(session_id)), None)
    return first_event is not None and isinstance(first_event.payload, SessionStarted) and first_event.payload.simulated


class TurnCost(msgspec.Struct, frozen=True):
    """`number` counts turns from 1; 0 collects what was paid between turns for keep-alive and prewarming."""

    number: int
    calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    uncached_cost_usd: Decimal = Decimal(0)


def compute_turn_costs(events: Iterable[Event], models: Models) -> tuple[TurnCost, ...]:
    """One row per turn that cost anything, in order; costs outside of any turn come last."""
    turns: dict[str | None, TurnCost] = {}
    started = 0
    for event in events:
        match event.payload:
            case TurnStarted():
                started += 1
                turns[event.turn_id] = TurnCost(started)
            case LlmCallFailed(usage=usage) if usage == Usage():
                pass  # Refused: nothing was charged.
            case LlmCallCompleted() | LlmCallFailed() as call:
                uncached = uncached_call_usd(call, event.at, find_priced_model(call.model, models))
                _add(turns, event.turn_id, TurnCost(0, 1, call.usage, call.cost_usd, uncached))
            case ExplicitCacheChanged(cost_usd=cost, storage_cost_usd=storage_cost):
                _add(turns, event.turn_id, TurnCost(0, cost_usd=cost + storage_cost))
            case CachePinged() as ping:
                # A ping can be sent during a turn but is not part of it.
                _add(turns, None, TurnCost(0, usage=ping.usage, cost_usd=ping.cost_usd))
            case _:
                pass
    charged = (turn for turn in turns.values() if turn.calls or turn.cost_usd)
    return tuple(sorted(charged, key=lambda turn: (not turn.number, turn.number)))


def sum_turn_costs(turns: Iterable[TurnCost]) -> TurnCost:
    calls, usage, cost, uncached = 0, Usage(), Decimal(0), Decimal(0)
    for turn in turns:
        calls, usage = calls + turn.calls, usage + turn.usage
        cost, uncached = cost + turn.cost_usd, uncached + turn.uncached_cost_usd
    return TurnCost(0, calls, usage, cost, uncached)


def _add(turns: dict[str | None, TurnCost], turn_id: str | None, addition: TurnCost) -> None:
    current = turns.get(turn_id) or turns.get(None) or TurnCost(0)
    key = turn_id if turn_id in turns else None
    turns[key] = msgspec.structs.replace(sum_turn_costs((current, addition)), number=current.number)
