"""The tables are what the events add up to, whatever happened, whoever wrote it, and however it was interrupted."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from call_histories import SESSIONS, START, call_events
from holdfast.catalog.lookup import shipped_models
from holdfast.events.envelope import Event
from holdfast.ledger.folded import folded_tables
from holdfast.ledger.report import report_of
from holdfast.ledger.tables import Scope, Tables
from holdfast.stores.checking import differences
from holdfast.stores.database import DatabaseLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.retention import AUDIT_TYPES
from holdfast.stores.sqlite import SqliteStore
from postgres_server import new_database

Deed = tuple[str, int, list[Event] | str]

fresh = count()

# Strategies of all kinds of values take a while to be made, once.
SLOW = (HealthCheck.too_slow,)

stores = st.integers(0, 1)
appends = st.tuples(st.just("append"), stores, st.lists(call_events(), max_size=6))
others = st.tuples(
    st.sampled_from(["delete", "prune", "rebuild", "append it again"]), stores, st.sampled_from(SESSIONS)
)
histories: st.SearchStrategy[list[Deed]] = st.lists(appends | appends | others, max_size=10)

SCOPES = (
    Scope(),
    Scope(since=START + 3.0, simulated=True),
    Scope(since=START + 100_000.0),
    Scope(since=1e18),
    Scope(session_id="x"),
    Scope(since=START + 6.0, session_id="y"),
)


@settings(max_examples=30, suppress_health_check=SLOW)
@given(histories)
def test_the_tables_of_a_file_that_two_stores_write_are_what_the_events_add_up_to(history: list[Deed]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        with SqliteStore(path) as one, SqliteStore(path) as other:
            check(history, one, other)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with new_database() as url:
        yield url


@settings(max_examples=10, suppress_health_check=SLOW)
@given(histories)
def test_the_tables_of_a_server_that_two_stores_write_are_what_the_events_add_up_to(
    server: str, history: list[Deed]
) -> None:
    with PostgresStore(server) as one, PostgresStore(server) as other:
        for row in one.sessions():
            one.delete(row.id)
        assert list(differences(one, shipped_models())) == []
        assert answers(one.tables()) == answers(MemoryStore().tables())
        check(history, one, other)


def check(history: list[Deed], *stores: DatabaseLog) -> None:
    with MemoryStore() as memory:
        for what, which, told in history:
            numbered = [replace(event, id=f"{next(fresh)}") for event in told] if isinstance(told, list) else []
            for store in (stores[which], memory):
                do(store, what, told, numbered)
        one = stores[0]
        for session in SESSIONS:
            assert list(one.read(session)) == list(memory.read(session))
        assert one.sessions() == memory.sessions()
        assert list(differences(one, shipped_models())) == []
        assert answers(one.tables()) == answers(memory.tables()) == answers(folded_tables(one, shipped_models()))


def do(store: DatabaseLog | MemoryStore, what: str, told: list[Event] | str, numbered: list[Event]) -> None:
    if not isinstance(told, str):
        assert store.append(numbered).exception(timeout=10) is None
    elif what == "delete":
        store.delete(told)
    elif what == "prune":
        store.prune(told, AUDIT_TYPES, before=1e300)
    elif what == "rebuild" and isinstance(store, DatabaseLog):
        store.rebuild()
    elif what == "append it again":
        # Refused as it is, beside appends that are not.
        known = list(store.read(told))[:1]
        assert (store.append(known).exception(timeout=10) is None) == (not known)


def answers(tables: Tables) -> list[object]:
    found: list[object] = []
    for scope in SCOPES:
        found += [report_of(tables, scope), tables.models(scope), tables.outcomes(scope)]
        found += [tables.session_amounts(scope, order="spent", limit=1, offset=1)]
        found += [tables.session_amounts(scope, order="newest")]
    return [*found, *(tables.session_calls(session, after=after) for session in SESSIONS for after in (0, 2))]
