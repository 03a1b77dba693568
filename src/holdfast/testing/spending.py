"""The model calls of a test with their tokens and cost, one by one and in total."""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models, find_model, price_at, utc_date
from holdfast.catalog.schema import Price
from holdfast.economics.cost import cost_usd, uncached_cost_usd
from holdfast.simulator.exchange import RecordedRequest
from holdfast.types.blocks import Block
from holdfast.types.usage import Usage


class ModelCall(msgspec.Struct, frozen=True):
    """A request that a model answered; `model` is `provider:name`. Costs are 0 if no price is known."""

    number: int
    at: float
    model: str
    body: bytes
    reply: tuple[Block, ...]
    usage: Usage
    cost_usd: Decimal = Decimal(0)
    uncached_cost_usd: Decimal = Decimal(0)


class Spending(msgspec.Struct, frozen=True):
    calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    uncached_cost_usd: Decimal = Decimal(0)

    @property
    def read_share(self) -> float:
        """The share of all prompt tokens that was read from the cache."""
        return self.usage.read_share

    @property
    def saved_usd(self) -> Decimal:
        """Compared with the same calls without a cache; negative if cache writes cost more than reads saved."""
        return self.uncached_cost_usd - self.cost_usd

    def __add__(self, other: "Spending") -> "Spending":
        costs = self.cost_usd + other.cost_usd, self.uncached_cost_usd + other.uncached_cost_usd
        return Spending(self.calls + other.calls, self.usage + other.usage, *costs)


def sum_spending(calls: Iterable[ModelCall]) -> Spending:
    each = (Spending(1, call.usage, call.cost_usd, call.uncached_cost_usd) for call in calls)
    return sum(each, Spending())


def collect_model_calls(requests: Iterable[RecordedRequest], models: Models) -> tuple[ModelCall, ...]:
    """The requests with a reply; token counts, model lists and refused requests are no model calls."""
    calls: list[ModelCall] = []
    for request in requests:
        if request.reply is None:
            continue
        usage = request.reply.usage
        call = ModelCall(len(calls) + 1, request.at, request.model, request.body, request.reply.content, usage)
        if price := find_price(request.model, models, at=request.at, tokens=usage.tokens_sent):
            costs = (cost_usd(usage, price), uncached_cost_usd(usage, price))
            call = msgspec.structs.replace(call, cost_usd=costs[0], uncached_cost_usd=costs[1])
        calls.append(call)
    return tuple(calls)


def find_price(model: str, models: Models, *, at: float, tokens: int) -> Price | None:
    row = find_model(model, models)
    return price_at(row, utc_date(at), tokens) if row.prices else None
