"""How long a page of the session list takes, by sort order and filter.

The tables of PostgreSQL are vacuumed before, as they are in use within minutes of the last write.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.session_counts import fill_with_short_sessions
from benchmarks.store_appends import on_a_server, vacuum
from holdfast.catalog.lookup import shipped_models
from holdfast.service.api.session_list import SessionsRequest, find_page
from holdfast.service.context import QUOTES_PROMPT, AppContext
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store

SESSIONS = int(os.environ.get("HOLDFAST_BENCH_SESSIONS", "100000"))
ROUNDS = 5
PAGES: dict[str, SessionsRequest] = {
    "newest": SessionsRequest(),
    "spent": SessionsRequest(sort="spent"),
    "lost": SessionsRequest(sort="lost"),
    "read share, ascending": SessionsRequest(sort="read_share", descending=False),
    "search": SessionsRequest(search="many tool calls"),
    "search without a match": SessionsRequest(search="nowhere to be found"),
    "model and key, by loss": SessionsRequest(model="gpt", key="key3", sort="lost"),
    "verdict": SessionsRequest(verdict="provider_side"),
    "a week": SessionsRequest(start="2027-02-01T00:00:00Z", end="2027-02-08T00:00:00Z"),
}


def run() -> Iterator[tuple[str, str]]:
    """Rows of name and figure: the fastest of five runs, with the number of matches and the rows of a page."""
    with TemporaryDirectory() as folder, open_store(Path(folder) / "log.db") as store:
        fill_with_short_sessions(store, SESSIONS)
        yield from _measure("SQLite", store)
    try:
        with on_a_server() as served:
            assert isinstance(served, DatabaseEventLog)
            fill_with_short_sessions(served, SESSIONS)
            vacuum(served)
            yield from _measure("PostgreSQL", served)
    except ImportError as error:
        yield "PostgreSQL", f"not measured, {error.name} is not installed"


def _measure(engine: str, store: DatabaseEventLog) -> Iterator[tuple[str, str]]:
    # As for a key of scope admin: titles have the words of the first request.
    QUOTES_PROMPT.set(True)
    context = AppContext(store, store.records, shipped_models())
    newest = find_page(context, SessionsRequest(limit=500))
    pages = {**PAGES, "newest, behind 500": SessionsRequest(after=newest.next)}
    for name, request in pages.items():
        elapsed = min(_milliseconds(context, request) for _ in range(ROUNDS))
        yield f"{engine}, {SESSIONS:,} sessions, {name}, ms", f"{elapsed:.0f}"


def _milliseconds(context: AppContext, request: SessionsRequest) -> float:
    start = time.perf_counter()
    find_page(context, request)
    return (time.perf_counter() - start) * 1_000


if __name__ == "__main__":
    for name, figure in run():
        sys.stdout.write(f"{name:<70} {figure:>8}\n")
        sys.stdout.flush()
