"""Whether the service lives, whether it can work, and what it has counted."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast import __version__
from holdfast.canonical.usage import Usage
from holdfast.errors import StoreError
from holdfast.ledger.tables import Scope, Tables
from holdfast.service.counting import header, sample
from holdfast.service.failures import RefusedError
from holdfast.service.routes import PLAIN_TEXT, Answer, Nothing, Route, raw_route, route
from holdfast.service.service import Service


class Health(msgspec.Struct, frozen=True):
    status: str
    version: str


async def healthy(service: Service, request: Nothing) -> Health:
    return Health("ok", __version__)


async def ready(service: Service, request: Nothing) -> Health:
    try:
        await asyncio.to_thread(service.records.newest_place)
    except StoreError as error:
        raise RefusedError(503, "store_unavailable", "the store cannot be read") from error
    return Health("ready", __version__)


async def metrics(service: Service, request: Nothing, last_event_id: str | None) -> Answer:
    scope = Scope(simulated=service.simulated)
    spent = await asyncio.to_thread(lambda: list(_spent(service.log.tables(), scope)))
    lines = [*service.counted.lines(), *spent]
    return Answer(("\n".join(lines) + "\n").encode(), PLAIN_TEXT)


def _spent(tables: Tables, scope: Scope) -> Iterator[str]:
    """What all calls of the store took, by model."""
    models = sorted(tables.models(scope), key=lambda one: (one.model, one.provider))
    usage: dict[str, Usage] = {}
    calls: dict[str, int] = {}
    cost: dict[str, Decimal] = {}
    for one in models:
        cost[one.model] = cost.get(one.model, Decimal(0)) + one.amounts.spent_usd
        if one.amounts.calls:
            usage[one.model] = usage.get(one.model, Usage()) + one.amounts.usage
            calls[one.model] = calls.get(one.model, 0) + one.amounts.calls
    yield from header("holdfast_llm_calls_total", "counter", "Calls that a provider was paid for.")
    for model in sorted(calls):
        yield sample("holdfast_llm_calls_total", {"model": model}, calls[model])
    yield from header("holdfast_llm_tokens_total", "counter", "Tokens by kind; the kinds do not overlap.")
    for model in sorted(usage):
        took = usage[model]
        kinds = {"input": took.input, "cache_read": took.cache_read, "cache_write": took.cache_write}
        for kind, count in (*kinds.items(), ("output", took.output)):
            yield sample("holdfast_llm_tokens_total", {"model": model, "kind": kind}, count)
    yield from header("holdfast_llm_cost_usd_total", "counter", "US dollars by the catalog's prices.")
    for model in sorted(cost):
        yield sample("holdfast_llm_cost_usd_total", {"model": model}, float(cost[model]))


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/healthz",
        healthy,
        request=Nothing,
        reply=Health,
        rule="open",
        summary="Whether the process answers.",
    ),
    route(
        "GET",
        "/readyz",
        ready,
        request=Nothing,
        reply=Health,
        rule="open",
        summary="Whether the store can be read.",
        refusals=(503,),
    ),
    raw_route(
        "/metrics",
        metrics,
        request=Nothing,
        rule="read",
        summary="What was counted, for Prometheus.",
        content_type=PLAIN_TEXT,
    ),
)
