"""Liveness, readiness and Prometheus metrics."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast import __version__
from holdfast.catalog.lookup import label_model
from holdfast.errors import StoreError
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.analytics.results import CostQueries, count_unreadable_calls
from holdfast.service.alerts import KINDS, find_alerts
from holdfast.service.context import AppContext
from holdfast.service.http.routes import (
    PLAIN_TEXT,
    ApiError,
    EmptyRequest,
    Route,
    RouteRequest,
    RouteResponse,
    json_route,
    raw_route,
)
from holdfast.service.telemetry.prometheus import format_metric_header, format_sample, merge_metrics
from holdfast.types.usage import Usage


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """`unreadable_calls`: forwarded calls whose responses could not be decoded, so that their usage is an estimate.

    `reasons` say why the status is `degraded`: requests are served, but not everything works.
    """

    status: str
    version: str
    unreadable_calls: int = 0
    reasons: tuple[str, ...] = ()


async def get_health(context: AppContext, request: EmptyRequest) -> Health:
    """Whether the process is alive."""
    return Health("ok", __version__)


def get_readiness(context: AppContext, request: EmptyRequest) -> Health:
    """Whether the store can be read, and whether everything else works."""
    scope = LedgerScope(simulated=context.simulated)
    try:
        context.records.newest_position()
        unreadable = count_unreadable_calls(context.log.cost_queries(), scope)
    except StoreError as error:
        raise ApiError(503, "store_unavailable", "the store cannot be read") from error
    reasons = tuple(reason for reason in (warning() for warning in context.warnings) if reason)
    return Health("degraded" if reasons else "ready", __version__, unreadable, reasons)


async def get_metrics(context: AppContext, request: EmptyRequest, incoming: RouteRequest) -> RouteResponse:
    """Metrics in Prometheus text format."""
    scope = LedgerScope(simulated=context.simulated)
    call_lines = await asyncio.to_thread(
        lambda: [*_call_metrics(context.log.cost_queries(), scope), *_alert_metrics(context)]
    )
    # Samples of this process first: with several workers, each answers for all.
    processes = [context.request_metrics.format_lines(), *await asyncio.to_thread(context.read_other_metrics)]
    lines = [*merge_metrics(processes), *call_lines]
    return RouteResponse(("\n".join(lines) + "\n").encode(), PLAIN_TEXT)


def _alert_metrics(context: AppContext) -> Iterator[str]:
    yield from format_metric_header("holdfast_alerts", "gauge", "Alerts of the overview by kind.")
    counts = Counter(alert.kind for alert in find_alerts(context, context.clock()))
    for kind in KINDS:
        yield format_sample("holdfast_alerts", {"kind": kind}, counts[kind])


def _call_metrics(tables: CostQueries, scope: LedgerScope) -> Iterator[str]:
    """Calls, tokens and cost of all calls in the store, by model."""
    rows = sorted(tables.models(scope), key=lambda row: (row.model, row.provider))
    usage: dict[str, Usage] = {}
    calls: dict[str, int] = {}
    cost: dict[str, Decimal] = {}
    for row in rows:
        model = label_model(row.model)
        cost[model] = cost.get(model, Decimal(0)) + row.amounts.spent_usd
        if row.amounts.calls:
            usage[model] = usage.get(model, Usage()) + row.amounts.usage
            calls[model] = calls.get(model, 0) + row.amounts.calls
    yield from format_metric_header("holdfast_llm_calls_total", "counter", "Billed calls.")
    for model in sorted(calls):
        yield format_sample("holdfast_llm_calls_total", {"model": model}, calls[model])
    yield from format_metric_header("holdfast_llm_tokens_total", "counter", "Tokens by kind; the kinds do not overlap.")
    for model in sorted(usage):
        totals = usage[model]
        kinds = {"input": totals.input, "cache_read": totals.cache_read, "cache_write": totals.cache_write}
        for kind, count in (*kinds.items(), ("output", totals.output)):
            yield format_sample("holdfast_llm_tokens_total", {"model": model, "kind": kind}, count)
    yield from format_metric_header("holdfast_llm_cost_usd_total", "counter", "Cost in US dollars at catalog prices.")
    # A model without a price costs an unknown amount, not nothing. Asked only if there may be one: it reads calls.
    unpriced = {label_model(part.model) for part in tables.unpriced(scope)} if not all(cost.values()) else set()
    for model in sorted(model for model in cost if cost[model] or model not in unpriced):
        yield format_sample("holdfast_llm_cost_usd_total", {"model": model}, float(cost[model]))
    yield from format_metric_header(
        "holdfast_llm_calls_ended_total", "counter", "Calls by outcome: completed, or the error class."
    )
    outcomes: dict[tuple[str, str], int] = {}
    for ended in tables.outcomes(scope):
        key = label_model(ended.model), ended.outcome
        outcomes[key] = outcomes.get(key, 0) + ended.calls
    for (model, outcome), count in sorted(outcomes.items()):
        yield format_sample("holdfast_llm_calls_ended_total", {"model": model, "outcome": outcome}, count)


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/healthz", get_health, rule="open"),
    json_route("GET", "/readyz", get_readiness, rule="open", error_statuses=(503,)),
    raw_route("/metrics", get_metrics, rule="read", content_type=PLAIN_TEXT),
)
