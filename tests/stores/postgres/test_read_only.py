"""A PostgreSQL store that is open for reading only changes nothing on the server, and the server holds it to that."""

import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.support.event_examples import call_events, message_events
from tests.support.postgres_server import new_database

from holdfast.errors import StoreError
from holdfast.stores.migrate import load_migrations
from holdfast.stores.open import open_store

CURRENT = len(load_migrations("postgres"))


@pytest.fixture
def url() -> Iterator[str]:
    with new_database() as url:
        yield url


@pytest.fixture
def filled_url(url: str) -> str:
    with open_store(url) as store:
        store.append([*message_events(3), *call_events(40, "t")]).result(10)
    return url


def run(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_reader_sees_what_a_writer_sees_and_starts_no_thread(filled_url: str) -> None:
    with open_store(filled_url) as writer:
        expected = writer.sessions(), list(writer.read("t")), writer.cost_queries().totals()
    threads = threading.active_count()
    with open_store(filled_url, read_only=True) as reader:
        assert (reader.sessions(), list(reader.read("t")), reader.cost_queries().totals()) == expected
        assert threading.active_count() == threads


def test_the_server_refuses_a_change_even_if_a_query_makes_one(filled_url: str) -> None:
    with open_store(filled_url, read_only=True) as store:
        with pytest.raises(StoreError, match="is read-only"):
            store._fetch("DELETE FROM holdfast.events RETURNING seq", ())
        with pytest.raises(StoreError, match="open for reading only"):
            store.delete("s")
        assert "open for reading only" in str(store.append(message_events(1, "u")).exception(10))
        assert len(list(store.read("s"))) == 3


def test_an_empty_database_holds_no_store_and_stays_empty(url: str) -> None:
    with pytest.raises(StoreError, match="holds no store: check the address"):
        open_store(url, read_only=True)
    assert run(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'") == []


def test_an_older_database_is_refused_with_the_command_that_migrates_it(filled_url: str) -> None:
    run(filled_url, f"DELETE FROM holdfast.versions WHERE version = {CURRENT}")
    with pytest.raises(
        StoreError, match=f"has schema version {CURRENT - 1}, this Holdfast needs {CURRENT}: run `holdfast db migrate`"
    ):
        open_store(filled_url, read_only=True)


@pytest.mark.parametrize(
    "change", ["UPDATE holdfast.sessions SET entered_events = 0", "UPDATE holdfast.ledger SET version = 0"]
)
def test_incomplete_roll_ups_are_not_summed_up(filled_url: str, change: str) -> None:
    run(filled_url, change)
    with open_store(filled_url, read_only=True) as store:
        assert len(store.sessions()) == 2
        with pytest.raises(StoreError, match="are not complete: run `holdfast db migrate` on it"):
            store.cost_queries().totals()
