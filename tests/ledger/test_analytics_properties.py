"""The analytics tables equal a fold over the events, whatever happened, whichever store wrote it, and despite
interruptions.
"""

from collections.abc import Iterator
from decimal import Decimal
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.call_histories import SESSIONS, START, call_events
from tests.support.folded_analytics import EventAnalyticsQueries, build_event_cost_queries
from tests.support.postgres_server import new_database

from holdfast.catalog.lookup import shipped_models
from holdfast.events.log import Event, event_type_of
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.events.payloads.session import SessionStarted
from holdfast.ledger.analytics.queries import (
    GroupBy,
    GroupFilter,
    LedgerScope,
    SessionCostOrder,
    SessionFilter,
    SessionOrdering,
    SessionSort,
)
from holdfast.ledger.analytics.results import CostQueries, count_unreadable_calls
from holdfast.ledger.cache.state import FOLDED_EVENT_TYPES, CacheState, fold_cache_state
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES, find_differences
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.analytics import AnalyticsQueries
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.usage import Usage

DAY = START - START % 86_400 + 86_400

Operation = tuple[str, int, list[Event] | str]

fresh = count()

# Strategies for all payload types take a while to build, once.
SLOW = (HealthCheck.too_slow,)

stores = st.integers(0, 1)
appends = st.tuples(st.just("append"), stores, st.lists(call_events(), max_size=6))
others = st.tuples(
    st.sampled_from(["delete", "prune", "rebuild", "append it again"]), stores, st.sampled_from(SESSIONS)
)
histories: st.SearchStrategy[list[Operation]] = st.lists(appends | appends | others, max_size=10)

GROUP_FILTERS = (
    GroupFilter(),
    GroupFilter(workers=False),
    GroupFilter(session="x"),
    GroupFilter(model="openai:gpt-5"),
    GroupFilter(provider="anthropic", user="a"),
    GroupFilter(gateway_key="b\x00"),
    GroupFilter(team="", workers=False),
)
SCOPES = (
    LedgerScope(),
    LedgerScope(since=START + 3.0, simulated=True),
    LedgerScope(since=START + 100_000.0),
    LedgerScope(since=1e18),
    LedgerScope(session_id="x"),
    LedgerScope(since=START + 6.0, session_id="y"),
    LedgerScope(since=START + 3.0, until=START + 450.0),
    LedgerScope(since=START + 6.0, until=START + 90_000.0, simulated=True),
    LedgerScope(until=START + 200_000.0, session_id="x"),
    LedgerScope(since=DAY, until=DAY + 86_400.0),
    LedgerScope(since=DAY - 5_000.0, until=DAY + 90_000.0),
)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=SLOW)
@given(histories)
def test_the_tables_of_a_file_that_two_stores_write_equal_a_fold_over_the_events(history: list[Operation]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        with SqliteStore(path) as one, SqliteStore(path) as other:
            check_operations(history, one, other)


def test_a_summary_call_without_a_model_name_is_in_the_tables_as_on_the_log(tmp_path: Path) -> None:
    summary_call = LlmCallCompleted(
        model="",
        provider="openai",
        usage=Usage(10),
        cost_usd=Decimal("0.1"),
        pricing_version="",
        latency_ms=7,
        stop_reason="end_turn",
        produced_tool_calls=0,
        produced_thinking_blocks=0,
        request_id="r",
        source="summary",
    )
    events = [
        Event(id="1", at=START, session_id="x", actor="agent", payload=payload)
        for payload in (SessionStarted(model="openai:gpt-5"), summary_call)
    ]
    with SqliteStore(tmp_path / "log.db") as one, SqliteStore(tmp_path / "log.db") as other:
        check_operations([("append", 0, events)], one, other)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with new_database() as url:
        yield url


@settings(max_examples=settings().max_examples // 8, suppress_health_check=SLOW)
@given(histories)
def test_the_tables_of_a_server_that_two_stores_write_equal_a_fold_over_the_events(
    server: str, history: list[Operation]
) -> None:
    with PostgresStore(server) as one, PostgresStore(server) as other:
        for row in one.sessions():
            one.delete(row.id)
        assert list(find_differences(one, shipped_models())) == []
        assert query_costs(one.cost_queries()) == query_costs(MemoryStore().cost_queries())
        check_operations(history, one, other)


def check_operations(history: list[Operation], *stores: DatabaseEventLog) -> None:
    with MemoryStore() as memory:
        for operation, store_index, target in history:
            numbered = [replace(event, id=f"{next(fresh)}") for event in target] if isinstance(target, list) else []
            for store in (stores[store_index], memory):
                apply_operation(store, operation, target, numbered)
        one = stores[0]
        for session in SESSIONS:
            events = list(one.read(session))
            assert events == list(memory.read(session))
            folded_types = [event for event in events if event_type_of(event.payload) in FOLDED_EVENT_TYPES]
            assert list(one.read(session, types=FOLDED_EVENT_TYPES)) == folded_types
            states = (fold_cache_state(CacheState(session), part, shipped_models()) for part in (events, folded_types))
            assert len({replace(state, last_event_id=None) for state in states}) == 1
        assert one.sessions() == memory.sessions()
        assert list(find_differences(one, shipped_models())) == []
        folded_costs = build_event_cost_queries(one, shipped_models())
        assert query_costs(one.cost_queries()) == query_costs(folded_costs)
        folded = EventAnalyticsQueries(one, shipped_models())
        assert list(query_analytics(one.analytics_queries())) == list(query_analytics(folded))


def apply_operation(store: DatabaseEventLog, operation: str, target: list[Event] | str, numbered: list[Event]) -> None:
    if not isinstance(target, str):
        assert store.append(numbered).exception(timeout=10) is None
    elif operation == "delete":
        store.delete(target)
    elif operation == "prune":
        store.prune(target, RETAINED_EVENT_TYPES, before=1e300)
    elif operation == "rebuild":
        store.clear_tables()
    elif operation == "append it again":
        # Refused because the event exists already, while other appends succeed.
        existing = list(store.read(target))[:1]
        assert (store.append(existing).exception(timeout=10) is None) == (not existing)


def query_analytics(analytics: AnalyticsQueries | EventAnalyticsQueries) -> Iterator[object]:
    """Every analytics query; groups have no order."""
    for scope in (one for one in SCOPES if one.session_id is None):
        for group_by in get_args(GroupBy):
            yield sorted(analytics.groups(group_by, scope), key=repr)
            yield analytics.unpriced_groups(group_by, scope)
        yield analytics.failures(scope), analytics.latencies(scope), analytics.usage_by_size((1_000, 80_000), scope)
        yield analytics.call_failures(scope, limit=100), analytics.call_failures(scope, limit=1)
        yield analytics.call_failures(scope, limit=2, skip=1)
        yield analytics.call_failures(scope, outcome="rate_limit", limit=100)
        yield analytics.call_failures(scope, outcome="unreadable", limit=1, skip=1)
        yield analytics.cache_breaks(scope, limit=100, skip=0), analytics.cache_breaks(scope, limit=1, skip=1)
        yield analytics.cache_breaks(scope, kind="provider_side", limit=100, skip=0)
        yield analytics.cache_breaks(scope, component="tools", limit=100, skip=0)
        yield analytics.read_shares("client", scope), analytics.read_shares("gateway_key", scope)
        # The log of all sessions has an order that only a database knows.
        yield sorted(analytics.skill_loads(scope), key=repr)
    some: tuple[GroupBy, ...] = ("model", "session", "hour", "none")
    for group_filter, group_by in product(GROUP_FILTERS, some):
        yield sorted(analytics.groups(group_by, SCOPES[-1], group_filter), key=repr)
        yield analytics.unpriced_groups(group_by, SCOPES[-1], group_filter)
    for order, simulated in product(get_args(SessionCostOrder), (False, True)):
        yield analytics.session_costs(order=order, limit=10, skip=0, simulated=simulated)
        yield analytics.session_costs(order=order, limit=1, skip=1, simulated=simulated)
    for sort in get_args(SessionSort):
        yield analytics.find_sessions(SessionFilter(simulated=True), SessionOrdering(sort), limit=10)
    yield analytics.find_sessions(SessionFilter(), SessionOrdering(descending=False), limit=10)
    yield analytics.count_matches(SessionFilter())
    yield analytics.last_verdicts(SESSIONS)


def query_costs(tables: CostQueries) -> list[object]:
    results: list[object] = []
    for scope in SCOPES:
        results += [tables.totals(scope), tables.days(scope), tables.session_amounts(scope)]
        results += [tables.list_sessions(scope, order="newest", calls_only=True)]
        results += [tables.count_sessions(scope, calls_only=True)]
        results += [tables.list_sessions(scope), tables.list_sessions(scope, limit=1), tables.count_sessions(scope)]
        results += [
            count_unreadable_calls(tables, scope),
            tables.causes(scope),
            tables.models(scope),
            tables.outcomes(scope),
            tables.verdicts(scope),
        ]
        results += [tables.session_amounts(scope, order="spent", limit=1, offset=1)]
        results += [tables.session_amounts(scope, order="newest")]
    return results
