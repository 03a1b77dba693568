"""Properties of the stores: events are read as they were appended, and all stores behave alike."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.postgres_server import new_database
from tests.support.strategies import events_with

from holdfast.errors import HoldfastError
from holdfast.events.log import Event, EventLog, SessionRow
from holdfast.events.payloads.session import SessionStarted, TurnCancelled
from holdfast.events.payloads.union import AnyPayload
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.dialect import escape_nul, unescape_nul
from holdfast.stores.sql.events import tally_sessions
from holdfast.stores.sqlite.store import SqliteStore


@pytest.fixture(scope="module", params=get_args(AnyPayload), ids=lambda payload: payload.__name__)
def payload(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture(scope="module")
def stores(payload: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EventLog, EventLog]]:
    """New stores for each kind of event: costs add up, and a sum holds at most nine million dollars."""
    path = tmp_path_factory.mktemp("laws") / "log.db"
    with SqliteStore(path) as sqlite, new_database() as url, PostgresStore(url) as postgres:
        yield sqlite, postgres


@pytest.fixture(scope="module")
def postgres_store() -> Iterator[PostgresStore]:
    with new_database() as url, PostgresStore(url) as store:
        yield store


fresh = count()


@settings(max_examples=settings().max_examples // 4)
@given(examples=st.data())
def test_every_kind_of_event_is_read_as_it_was_appended(
    stores: tuple[EventLog, EventLog], payload: object, examples: st.DataObject
) -> None:
    drawn = examples.draw(st.lists(events_with(payload), max_size=3))
    session = f"session {next(fresh)}"
    new_events = [replace(event, id=f"{next(fresh)} {event.id}", session_id=session) for event in drawn]
    for store in (*stores, MemoryStore()):
        store.append(new_events).result(10)
        assert list(store.read(session)) == new_events


starts = st.builds(SessionStarted, model=st.sampled_from(["", "m", "n"]), name=st.sampled_from([None, "", "o"]))
some_events = st.builds(
    Event,
    id=st.sampled_from("abcdefgh"),
    at=st.sampled_from([0.0, 1.0, 2.5, -3.0]),
    session_id=st.sampled_from("xyz"),
    actor=st.just("agent"),
    payload=starts | st.just(TurnCancelled("timeout", 1, 2)),
)
appends = st.tuples(st.just("append"), st.lists(some_events, max_size=4))
deletes = st.tuples(st.just("delete"), st.sampled_from("xyz"))
histories: st.SearchStrategy[list[tuple[str, list[Event] | str]]] = st.lists(appends | deletes, max_size=8)


@given(histories)
def test_all_stores_behave_alike_for_any_history(history: list[tuple[str, list[Event] | str]]) -> None:
    with TemporaryDirectory() as folder, SqliteStore(Path(folder) / "log.db") as sqlite, MemoryStore() as memory:
        check_same_outcomes(sqlite, memory, history)


@settings(max_examples=settings().max_examples // 4)
@given(histories)
def test_postgresql_behaves_like_the_other_stores_for_any_history(
    postgres_store: PostgresStore, history: list[tuple[str, list[Event] | str]]
) -> None:
    for row in postgres_store.sessions():
        postgres_store.delete(row.id)
    with MemoryStore() as memory:
        check_same_outcomes(postgres_store, memory, history)


def check_same_outcomes(store: EventLog, memory: EventLog, history: list[tuple[str, list[Event] | str]]) -> None:
    for _, action in history:
        assert outcome(store, action) == outcome(memory, action)
    assert store.sessions() == memory.sessions() == sum_sessions(memory)
    for session in "xyz":
        assert list(store.read(session)) == list(memory.read(session))
        for after in "abcdefgh":
            assert read_from(store, session, after) == read_from(memory, session, after)


@given(st.lists(st.text(st.sampled_from("\x00\x01\x02ab"))))
def test_text_with_any_character_remains_distinct_and_ordered_where_nul_cannot_be_stored(texts: list[str]) -> None:
    escaped = [str(escape_nul(text)) for text in texts]
    assert not any("\x00" in text for text in escaped)
    assert [unescape_nul(text) for text in escaped] == texts
    assert sorted(escaped) == [escape_nul(text) for text in sorted(texts)]


def outcome(store: EventLog, action: list[Event] | str) -> object:
    if isinstance(action, str):
        return store.delete(action)
    return str(store.append(action).exception(timeout=10))


def read_from(store: EventLog, session: str, after: str) -> list[Event] | str:
    try:
        return list(store.read(session, after=after))
    except HoldfastError as error:
        return str(error)


def sum_sessions(store: EventLog) -> tuple[SessionRow, ...]:
    """The list of sessions, computed from the events alone."""
    rows = [row for session in "xyz" for row in tally_sessions(store.read(session))]
    return tuple(sorted(rows, key=lambda row: (row.last_event_at, row.id), reverse=True))
