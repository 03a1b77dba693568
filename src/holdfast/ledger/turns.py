"""The cost of each turn of a session, and what it would have been without a cache."""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, find_model, price_at, utc_date
from holdfast.economics.cost import uncached_cost_usd
from holdfast.errors import UserError
from holdfast.events.envelope import Event
from holdfast.events.payloads import CacheKept, CachePinged, LlmCallCompleted, LlmCallFailed, TurnStarted


class TurnCost(msgspec.Struct, frozen=True):
    """`number` counts turns from 1; 0 collects what was paid between turns for keep-alive and prewarming."""

    number: int
    calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    uncached_cost_usd: Decimal = Decimal(0)


def turn_costs(events: Iterable[Event], models: Models) -> tuple[TurnCost, ...]:
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
                uncached = _uncached_usd(call, event.at, models)
                _add(turns, event.turn_id, TurnCost(0, 1, call.usage, call.cost_usd, uncached))
            case CacheKept() as explicit_cache:
                _add(
                    turns,
                    event.turn_id,
                    TurnCost(0, cost_usd=explicit_cache.cost_usd + explicit_cache.storage_cost_usd),
                )
            case CachePinged() as ping:
                # A ping can be sent during a turn but is not part of it.
                _add(turns, None, TurnCost(0, usage=ping.usage, cost_usd=ping.cost_usd))
            case _:
                pass
    charged = (turn for turn in turns.values() if turn.calls or turn.cost_usd)
    return tuple(sorted(charged, key=lambda turn: (not turn.number, turn.number)))


def total(turns: Iterable[TurnCost]) -> TurnCost:
    calls, usage, cost, uncached = 0, Usage(), Decimal(0), Decimal(0)
    for turn in turns:
        calls, usage = calls + turn.calls, usage + turn.usage
        cost, uncached = cost + turn.cost_usd, uncached + turn.uncached_cost_usd
    return TurnCost(0, calls, usage, cost, uncached)


def _add(turns: dict[str | None, TurnCost], turn_id: str | None, addition: TurnCost) -> None:
    current = turns.get(turn_id) or turns.get(None) or TurnCost(0)
    key = turn_id if turn_id in turns else None
    turns[key] = msgspec.structs.replace(total((current, addition)), number=current.number)


def _uncached_usd(call: LlmCallCompleted | LlmCallFailed, at: float, models: Models) -> Decimal:
    try:
        model = find_model(call.model, models)
    except UserError:
        # A model that was removed from the configuration has no price, but what was paid is known.
        return call.cost_usd
    return uncached_cost_usd(call.usage, price_at(model, utc_date(at), call.usage.tokens_sent))
