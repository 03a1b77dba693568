"""Laws of the stores: what goes in comes out, and no history tells two stores apart."""

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
    """New ones for each kind of event: what calls cost adds up, and a sum holds nine million dollars."""
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
    told = [replace(event, id=f"{next(fresh)} {event.id}", session_id=session) for event in drawn]
    for store in (*stores, MemoryStore()):
        store.append(told).result(10)
        assert list(store.read(session)) == told


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
def test_no_history_tells_one_store_from_another(history: list[tuple[str, list[Event] | str]]) -> None:
    with TemporaryDirectory() as folder, SqliteStore(Path(folder) / "log.db") as sqlite, MemoryStore() as memory:
        check_alike(sqlite, memory, history)


@settings(max_examples=settings().max_examples // 4)
@given(histories)
def test_no_history_tells_postgresql_from_another(
    postgres_store: PostgresStore, history: list[tuple[str, list[Event] | str]]
) -> None:
    for row in postgres_store.sessions():
        postgres_store.delete(row.id)
    with MemoryStore() as memory:
        check_alike(postgres_store, memory, history)


def check_alike(store: EventLog, memory: EventLog, history: list[tuple[str, list[Event] | str]]) -> None:
    for _, what in history:
        assert outcome(store, what) == outcome(memory, what)
    assert store.sessions() == memory.sessions() == added_up(memory)
    for session in "xyz":
        assert list(store.read(session)) == list(memory.read(session))
        for after in "abcdefgh":
            assert read_on(store, session, after) == read_on(memory, session, after)


@given(st.lists(st.text(st.sampled_from("\x00\x01\x02ab"))))
def test_text_with_any_character_is_kept_apart_and_in_order_where_nul_cannot_be_written(texts: list[str]) -> None:
    written = [str(escape_nul(text)) for text in texts]
    assert not any("\x00" in text for text in written)
    assert [unescape_nul(text) for text in written] == texts
    assert sorted(written) == [escape_nul(text) for text in sorted(texts)]


def outcome(store: EventLog, what: list[Event] | str) -> object:
    if isinstance(what, str):
        return store.delete(what)
    return str(store.append(what).exception(timeout=10))


def read_on(store: EventLog, session: str, after: str) -> list[Event] | str:
    try:
        return list(store.read(session, after=after))
    except HoldfastError as error:
        return str(error)


def added_up(store: EventLog) -> tuple[SessionRow, ...]:
    """The list of sessions, from the events alone."""
    rows = [row for session in "xyz" for row in tally_sessions(store.read(session))]
    return tuple(sorted(rows, key=lambda row: (row.last_event_at, row.id), reverse=True))
