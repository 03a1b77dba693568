"""Liveness, readiness and Prometheus metrics."""

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


async def healthy(context: Service, request: Nothing) -> Health:
    return Health("ok", __version__)


async def ready(context: Service, request: Nothing) -> Health:
    try:
        await asyncio.to_thread(context.records.newest_place)
    except StoreError as error:
        raise RefusedError(503, "store_unavailable", "the store cannot be read") from error
    return Health("ready", __version__)


async def metrics(context: Service, request: Nothing, last_event_id: str | None) -> Answer:
    scope = Scope(simulated=context.simulated)
    call_lines = await asyncio.to_thread(lambda: list(_call_metrics(context.log.tables(), scope)))
    lines = [*context.counted.lines(), *call_lines]
    return Answer(("\n".join(lines) + "\n").encode(), PLAIN_TEXT)


def _call_metrics(tables: Tables, scope: Scope) -> Iterator[str]:
    """Calls, tokens and cost of all calls in the store, by model."""
    rows = sorted(tables.models(scope), key=lambda row: (row.model, row.provider))
    usage: dict[str, Usage] = {}
    calls: dict[str, int] = {}
    cost: dict[str, Decimal] = {}
    for row in rows:
        cost[row.model] = cost.get(row.model, Decimal(0)) + row.amounts.spent_usd
        if row.amounts.calls:
            usage[row.model] = usage.get(row.model, Usage()) + row.amounts.usage
            calls[row.model] = calls.get(row.model, 0) + row.amounts.calls
    yield from header("holdfast_llm_calls_total", "counter", "Billed calls.")
    for model in sorted(calls):
        yield sample("holdfast_llm_calls_total", {"model": model}, calls[model])
    yield from header("holdfast_llm_tokens_total", "counter", "Tokens by kind; the kinds do not overlap.")
    for model in sorted(usage):
        totals = usage[model]
        kinds = {"input": totals.input, "cache_read": totals.cache_read, "cache_write": totals.cache_write}
        for kind, count in (*kinds.items(), ("output", totals.output)):
            yield sample("holdfast_llm_tokens_total", {"model": model, "kind": kind}, count)
    yield from header("holdfast_llm_cost_usd_total", "counter", "Cost in US dollars at catalog prices.")
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
        summary="Whether the process is alive.",
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
        summary="Metrics in Prometheus text format.",
        content_type=PLAIN_TEXT,
    ),
)
