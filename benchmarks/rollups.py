"""How long roll-ups take to answer on a store with a million events, on SQLite and PostgreSQL."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.store_appends import on_a_server
from holdfast.canonical.blocks import user
from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Mark, Plan
from holdfast.canonical.usage import Usage
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    AnyPayload,
    LlmCallCompleted,
    LlmCallStarted,
    MessageAppended,
    RequestPrepared,
    SessionStarted,
)
from holdfast.ledger.tables import Scope, Tables
from holdfast.stores.database import DatabaseLog
from holdfast.stores.open import open_store

EVENTS = int(os.environ.get("HOLDFAST_BENCH_EVENTS", "1000000"))
CALLS_A_SESSION = 50
EVENTS_A_CALL = 5
DAYS = 90
ROUNDS = 5
MILLISECONDS_MAX = 50
START = 1_800_000_000.0
DAY_SECONDS = 86_400
MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-5", "gemini:gemini-3-pro")
TEXT = "A message of the length that most have in a session with many tool calls. " * 3


def run() -> Iterator[tuple[str, str]]:
    """Rows of name and figure; of each query the best round counts."""
    for engine, opened in (("SQLite", _in_a_file), ("PostgreSQL", _on_a_server)):
        try:
            with opened() as store:
                yield from _measured(engine, store)
        except ImportError as error:
            yield engine, f"not measured, {error.name} is not installed"


def _measured(engine: str, store: DatabaseLog) -> Iterator[tuple[str, str]]:
    began = time.perf_counter()
    sessions = EVENTS // (CALLS_A_SESSION * EVENTS_A_CALL)
    waiting = []
    for number in range(sessions):
        waiting.append(store.append(_session(number, sessions)))
        if len(waiting) == 20:
            for done in waiting:
                done.result()
            waiting.clear()
    for done in waiting:
        done.result()
    facts = store.facts()
    rate = facts.events / (time.perf_counter() - began)
    yield (
        f"{engine}, {facts.events:,} events, {facts.calls:,} calls, entered as they are appended, events/s",
        f"{rate:,.0f}",
    )
    worst = 0.0
    for name, ask in queries(store.tables()).items():
        taken = min(_milliseconds(ask) for _ in range(ROUNDS))
        worst = max(worst, taken)
        yield f"{engine}, {name}, ms", f"{taken:.1f}"
    yield f"{engine}, slowest answer under {MILLISECONDS_MAX} ms", "yes" if worst < MILLISECONDS_MAX else "NO"


def queries(tables: Tables) -> dict[str, Callable[[], object]]:
    """What a report or a dashboard asks."""
    week = Scope(since=START + (DAYS - 7) * DAY_SECONDS + 4_321.0)
    one = f"{7:026d}"
    return {
        "totals of all time": tables.totals,
        "totals since a moment a week ago": lambda: tables.totals(week),
        "by day": tables.days,
        "by model": tables.models,
        "by cause": tables.causes,
        "by cause, since a week ago": lambda: tables.causes(week),
        "outcomes and latencies": tables.outcomes,
        "the 50 sessions that lost most": lambda: tables.session_amounts(limit=50),
        "the 50 that spent most, since a week ago": lambda: tables.session_amounts(week, order="spent", limit=50),
        "the last page of sessions": lambda: tables.session_amounts(order="newest", limit=50, offset=3_900),
        "totals of one session": lambda: tables.totals(Scope(session_id=one)),
        "100 calls of one session": lambda: tables.session_calls(one, limit=100),
    }


def _milliseconds(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1_000


def _session(number: int, sessions: int) -> list[Event]:
    session, model = f"{number:026d}", MODELS[number % len(MODELS)]
    start = START + number * DAYS * DAY_SECONDS / sessions
    payloads: list[AnyPayload] = [SessionStarted(model)]
    for call in range(CALLS_A_SESSION):
        payloads += _call(call, model, lost=(call * 7 + number) % 11 == 0)
    return [
        Event(f"{session}{place:06d}", start + place, session, "agent", payload)
        for place, payload in enumerate(payloads[:-1])
    ]


def _call(number: int, model: str, *, lost: bool) -> list[AnyPayload]:
    read = 0 if lost else 20_000 + 400 * number
    provider, request = model.partition(":")[0], f"r{number}"
    link = Link("history", number * 500, number * 500 + 500, f"{number:032x}")
    return [
        MessageAppended(user(TEXT)),
        RequestPrepared(Plan(marks=(Mark(number + 1, "5m"),)), "e", number, (link,), "d", 100_000),
        LlmCallStarted(model, provider, 20_000, request),
        LlmCallCompleted(
            model,
            provider,
            Usage(input=10, cache_read=read, cache_write_5m=20_400 + 400 * number - read, output=300),
            Decimal("0.0123") + Decimal(number) / 10_000,
            "2026-11-01.abcdef01",
            latency_ms=500 + (number * 977) % 9_000,
            stop_reason="end_turn",
            produced_tool_calls=0,
            produced_thinking_blocks=0,
            request_id=request,
        ),
        MessageAppended(user(TEXT)),
    ]


@contextmanager
def _in_a_file() -> Iterator[DatabaseLog]:
    with TemporaryDirectory() as folder, open_store(Path(folder) / "log.db") as store:
        assert isinstance(store, DatabaseLog)
        yield store


@contextmanager
def _on_a_server() -> Iterator[DatabaseLog]:
    with on_a_server() as store:
        assert isinstance(store, DatabaseLog)
        yield store


if __name__ == "__main__":
    for name, figure in run():
        sys.stdout.write(f"{name:<100} {figure:>12}\n")
        sys.stdout.flush()
