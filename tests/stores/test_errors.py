"""What a store says of each way in which a database fails: one line, and the driver's error as its cause."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.support.event_examples import message_event, message_events
from tests.support.instruction_service import open_store_of_kind
from tests.support.postgres_server import run, server_url

from holdfast.errors import StoreError
from holdfast.events.records import KeyRow
from holdfast.instructions.models import AuditRecord
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.postgres.store import PostgresStore

BUG = "cannot run a statement of Holdfast ("


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseEventLog]:
    with open_store_of_kind(request.param, tmp_path) as store:
        yield store


def check_cause(error: BaseException) -> None:
    assert isinstance(error.__cause__, sqlite3.Error | psycopg.Error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("query", "cells", "line"),
    [
        ("SELECT ?, ?", ("secret",), BUG),
        ("SELECT 1", ("secret",), BUG),
        ("SELEKT 'secret'", (), BUG),
        ("SELECT * FROM holdfast.secret", (), "is missing tables that Holdfast created there"),
    ],
)
def test_a_statement_that_is_wrong_is_no_lost_connection(
    store: DatabaseEventLog, query: str, cells: tuple[str, ...], line: str
) -> None:
    for attempt in (store._reads.fetch, store._changes.run_statement):
        with pytest.raises(StoreError) as refusal:
            attempt(query, cells)
        check_cause(refusal.value)
        assert line in str(refusal.value)
        assert "secret" not in str(refusal.value)
    store.append(message_events(2)).result(10)
    assert list(store.read("s")) == message_events(2)


def test_a_constraint_is_named_as_the_reason(store: DatabaseEventLog) -> None:
    key = KeyRow("a1", "secret", "admin", 1.0)
    store.records.add_key(key)
    with pytest.raises(StoreError, match="refused a change because of a constraint") as refusal:
        store.records.add_key(key)
    check_cause(refusal.value)
    assert "secret" not in str(refusal.value)


def test_an_append_that_failed_says_why_to_all_who_wait(store: DatabaseEventLog) -> None:
    store._changes.run_statement("DROP TABLE holdfast.events", ())
    for _ in range(2):
        error = store.append([message_event(0)]).exception(timeout=10)
        assert isinstance(error, StoreError)
        assert "is missing tables" in str(error)
        check_cause(error)


def test_a_recall_record_that_failed_keeps_its_cause(store: DatabaseEventLog) -> None:
    store._changes.run_statement("DROP TABLE holdfast.instruction_audit", ())
    record = AuditRecord(
        id="r",
        agent_id="a",
        heartbeat_id="h",
        session_start=1,
        intent="i",
        loaded_chunks=(),
        audit_token="t",
        created_at=1,
    )
    with pytest.raises(StoreError, match="is missing tables") as refusal:
        store.instructions.add_audit(record)
    check_cause(refusal.value)


def test_a_server_that_is_read_only_is_named_so(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        store.append(message_events(1)).result(10)
    name = run(postgres, "SELECT current_database()")[0][0]
    run(postgres, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with PostgresStore(postgres) as store:
        assert list(store.read("s")) == message_events(1)
        with pytest.raises(StoreError, match="is read-only: use the address of the primary server") as refusal:
            store.records.invalidate("s", at=1.0)
        check_cause(refusal.value)


def test_a_server_without_a_free_connection_is_named_with_its_reason(postgres: str) -> None:
    role = urlsplit(postgres).path.removeprefix("/") + "_one"
    run(server_url(), f"CREATE ROLE {role} LOGIN PASSWORD 'k7q9' CONNECTION LIMIT 1")
    try:
        PostgresStore(postgres).close()
        run(postgres, f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        run(postgres, f"GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {role}")
        url = postgres.replace(urlsplit(postgres).netloc.rpartition("@")[0], f"{role}:k7q9")
        with PostgresStore(url) as store:
            with pytest.raises(StoreError, match=r"cannot be reached \(.*too many connections for role") as refusal:
                store.sessions()
            check_cause(refusal.value)
    finally:
        run(postgres, f"DROP OWNED BY {role}")
        run(server_url(), f"DROP ROLE {role}")
