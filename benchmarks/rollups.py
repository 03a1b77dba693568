"""How long roll-ups take to answer on a store with a million events, on SQLite and PostgreSQL."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._calls import DAY_SECONDS, START, fill
from benchmarks.store_appends import on_a_server
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.analytics.results import CostQueries
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store

EVENTS = int(os.environ.get("HOLDFAST_BENCH_EVENTS", "1000000"))
DAYS = 90
ROUNDS = 5
MILLISECONDS_MAX = 50


def run() -> Iterator[tuple[str, str]]:
    """Rows of name and figure; of each query the best round counts."""
    for engine, opened in (("SQLite", _in_a_file), ("PostgreSQL", _on_a_server)):
        try:
            with opened() as store:
                yield from _measure(engine, store)
        except ImportError as error:
            yield engine, f"not measured, {error.name} is not installed"


def _measure(engine: str, store: DatabaseEventLog) -> Iterator[tuple[str, str]]:
    started = time.perf_counter()
    fill(store, EVENTS, days=DAYS)
    facts = store.read_facts()
    rate = facts.events / (time.perf_counter() - started)
    yield (
        f"{engine}, {facts.events:,} events, {facts.calls:,} calls, rolled up as they are appended, events/s",
        f"{rate:,.0f}",
    )
    worst = 0.0
    for name, query in queries(store.cost_queries()).items():
        milliseconds = min(_milliseconds(query) for _ in range(ROUNDS))
        worst = max(worst, milliseconds)
        yield f"{engine}, {name}, ms", f"{milliseconds:.1f}"
    yield f"{engine}, slowest query under {MILLISECONDS_MAX} ms", "yes" if worst < MILLISECONDS_MAX else "NO"


def queries(costs: CostQueries) -> dict[str, Callable[[], object]]:
    """The queries of a report or a dashboard."""
    week = LedgerScope(since=START + (DAYS - 7) * DAY_SECONDS + 4_321.0)
    session_id = f"{7:026d}"
    return {
        "totals of all time": costs.totals,
        "totals since a moment a week ago": lambda: costs.totals(week),
        "by day": costs.days,
        "by model": costs.models,
        "by cause": costs.causes,
        "by cause, since a week ago": lambda: costs.causes(week),
        "outcomes and latencies": costs.outcomes,
        "the 50 sessions that lost most": lambda: costs.session_amounts(limit=50),
        "the 50 that spent most, since a week ago": lambda: costs.session_amounts(week, order="spent", limit=50),
        "the last page of sessions": lambda: costs.session_amounts(order="newest", limit=50, offset=3_900),
        "totals of one session": lambda: costs.totals(LedgerScope(session_id=session_id)),
    }


def _milliseconds(query: Callable[[], object]) -> float:
    started = time.perf_counter()
    query()
    return (time.perf_counter() - started) * 1_000


@contextmanager
def _in_a_file() -> Iterator[DatabaseEventLog]:
    with TemporaryDirectory() as folder, open_store(Path(folder) / "log.db") as store:
        assert isinstance(store, DatabaseEventLog)
        yield store


@contextmanager
def _on_a_server() -> Iterator[DatabaseEventLog]:
    with on_a_server() as store:
        assert isinstance(store, DatabaseEventLog)
        yield store


if __name__ == "__main__":
    for name, figure in run():
        sys.stdout.write(f"{name:<100} {figure:>12}\n")
        sys.stdout.flush()
