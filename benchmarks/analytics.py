"""How long the analytics endpoints take, and whether that grows with the number of events.

The tables of PostgreSQL are vacuumed before, as they are in use within minutes of the last write.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar, get_args

from benchmarks._calls import DAY_SECONDS, START, fill
from benchmarks.store_appends import on_a_server, vacuum
from holdfast.catalog.lookup import shipped_models
from holdfast.ledger.analytics.queries import GroupBy
from holdfast.service.api import analytics
from holdfast.service.api.analytics import CostRequest, SavingsRequest, SessionCostsRequest, TurnRequest, WindowRequest
from holdfast.service.api.breaks import CacheBreaksRequest, list_cache_breaks
from holdfast.service.api.cache import DiscussionsRequest
from holdfast.service.context import AppContext, CacheStateStore
from holdfast.service.http.routes import ApiError
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store

EVENTS = int(os.environ.get("HOLDFAST_BENCH_EVENTS", "1000000"))
# The table of headline figures has those of SQLite only.
SERVER = "HOLDFAST_BENCH_WITHOUT_SERVER" not in os.environ
SMALLER = 10
DAYS = 90
ROUNDS = 5
MILLISECONDS_MAX = 300
"""Of a first `/api/cache`, and of `/analytics/regret`, with the whole store."""
EVERYTHING = ("2000-01-01T00:00:00Z", "2100-01-01T00:00:00Z")

Request = TypeVar("Request")
Query = Callable[[AppContext], object]


def run() -> Iterator[tuple[str, str]]:
    """Rows of name and figure: milliseconds on a store with a tenth of the events, on the whole one, their ratio."""
    with TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.db", Path(folder) / "large.db"
        with open_store(small) as tenth, open_store(large) as whole:
            yield from _compare("SQLite", tenth, whole)
    if not SERVER:
        return
    try:
        with on_a_server() as tenth, on_a_server() as whole:
            yield from _compare("PostgreSQL", tenth, whole)
    except ImportError as error:
        yield "PostgreSQL", f"not measured, {error.name} is not installed"


def _compare(engine: str, tenth: object, whole: object) -> Iterator[tuple[str, str]]:
    assert isinstance(tenth, DatabaseEventLog)
    assert isinstance(whole, DatabaseEventLog)
    fill(tenth, EVENTS // SMALLER, days=DAYS)
    fill(whole, EVENTS, days=DAYS)
    if engine == "PostgreSQL":
        vacuum(tenth)
        vacuum(whole)
    events, calls = whole.read_facts().events, whole.read_facts().calls
    yield f"{engine}, events and calls in the store", f"{events:,} {calls:,}"
    few, many = (
        AppContext(store, store.records, shipped_models(), clock=lambda: START + DAYS * DAY_SECONDS + 4_321.0)
        for store in (tenth, whole)
    )
    for name, query in routes().items():
        before, after = (min(_milliseconds(query, service) for _ in range(ROUNDS)) for service in (few, many))
        yield f"{engine}, {name}, ms with a tenth, ms, ratio", f"{before:.1f} {after:.1f} {after / before:.1f}"


def routes() -> dict[str, Query]:
    """The analytics requests: for the last seven days, which is the default, and for all time."""
    queries: dict[str, Query] = {}
    for window, (start, end) in {"a week": (None, None), "all time": EVERYTHING}.items():
        within = WindowRequest(start, end)
        for group_by in get_args(GroupBy):
            request = CostRequest(start, end, group_by=group_by)
            queries[f"cost by {group_by}, {window}"] = _bind(analytics.get_cost, request)
        queries[f"effectiveness, {window}"] = _bind(analytics.get_cache_effectiveness, within)
        queries[f"breaks, {window}"] = _bind(analytics.get_breaks, within)
        queries[f"calls behind breaks, {window}"] = _bind(list_cache_breaks, CacheBreaksRequest(start, end))
        queries[f"savings, {window}"] = _bind(analytics.get_savings, SavingsRequest(start, end))
        queries[f"reliability, {window}"] = _bind(analytics.get_reliability, within)
        queries[f"skills, {window}"] = _bind(analytics.get_skill_loads, within)
    queries["sessions by cost"] = _bind(analytics.get_session_costs, SessionCostsRequest())
    queries["sessions by recency"] = _bind(analytics.get_session_costs, SessionCostsRequest(order="recency"))
    queries["cache states, first call"] = lambda service: CacheStateStore(service.log, service.models).list_newest(
        limit=DiscussionsRequest().limit + 1, simulated=False
    )
    queries["regret, a week"] = _bind(analytics.get_regret, WindowRequest())
    queries["regret, all time"] = _bind(analytics.get_regret, WindowRequest(*EVERYTHING))
    queries["a turn that is not there"] = _bind(analytics.get_turn, TurnRequest("none"))
    return queries


def _bind(respond: Callable[[AppContext, Request], object], request: Request) -> Query:
    return lambda service: respond(service, request)


def _milliseconds(query: Query, service: AppContext) -> float:
    started = time.perf_counter()
    with suppress(ApiError):
        query(service)
    return (time.perf_counter() - started) * 1_000


if __name__ == "__main__":
    for name, figure in run():
        sys.stdout.write(f"{name:<90} {figure:>24}\n")
        sys.stdout.flush()
