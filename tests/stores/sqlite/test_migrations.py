"""Migration of a database of an older version."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import pytest
from tests.support.event_examples import message_event, message_events

from holdfast.stores.migrate import (
    Migration,
    check_sequence,
    load_migrations,
    migrate_sqlite,
    read_sqlite_version,
    split_statements,
)
from holdfast.stores.sqlite.store import SqliteStore

SHIPPED = len(load_migrations("sqlite"))
MOOD = Migration(
    SHIPPED + 1, "mood", "ALTER TABLE sessions ADD COLUMN mood TEXT;\nUPDATE sessions SET mood = 'fine';\n"
)
BROKEN = Migration(SHIPPED + 1, "broken", "CREATE TABLE moods (name TEXT);\nINSERT INTO nowhere VALUES (1);\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with SqliteStore(tmp_path / "log.db") as store:
        store.append(message_events(3)).result(10)
    return tmp_path / "log.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_shipped_migrations_are_numbered_from_one() -> None:
    shipped = load_migrations("sqlite")
    assert [(migration.version, migration.name) for migration in shipped] == [
        (1, "events"),
        (2, "lessons"),
        (3, "parents"),
        (4, "calls"),
        (5, "service"),
        (6, "instructions"),
        (7, "accounts"),
        (8, "adoptions"),
        (9, "detected_usage"),
        (10, "skill_use"),
        (11, "budgets"),
        (12, "request_counts"),
        (13, "shared_values"),
        (14, "replicas"),
        (15, "key_limits"),
        (16, "partitions"),
        (17, "session_list"),
        (18, "key_models"),
        (19, "failed_calls"),
        (20, "encodings"),
    ]
    assert "CREATE TABLE events" in shipped[0].sql


@pytest.mark.parametrize("numbers", [[2], [1, 3], [1, 1], [0, 1]])
def test_migrations_out_of_order_are_refused(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match=r"migration 'm' has number \d, expected \d"):
        check_sequence([Migration(number, "m", "") for number in numbers])


def test_migrations_in_order_are_accepted() -> None:
    assert check_sequence([*load_migrations("sqlite"), MOOD]) == (*load_migrations("sqlite"), MOOD)


def test_an_older_database_is_migrated_with_its_content(connection: sqlite3.Connection) -> None:
    migrate_sqlite(connection, [*load_migrations("sqlite"), MOOD])
    assert read_sqlite_version(connection) == SHIPPED + 1
    assert connection.execute("SELECT id, event_count, mood FROM sessions").fetchall() == [("s", 3, "fine")]


def test_sessions_from_before_delegation_have_no_parent(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate_sqlite(connection, load_migrations("sqlite")[:2])
        connection.execute("INSERT INTO sessions VALUES ('s', NULL, 'anthropic:m', 1.0, 2.0, 0)")
    with SqliteStore(path) as store:
        assert [(row.id, row.parent_session_id) for row in store.sessions()] == [("s", None)]


def test_a_migration_runs_once(connection: sqlite3.Connection) -> None:
    migrate_sqlite(connection, [*load_migrations("sqlite"), MOOD])
    connection.execute("UPDATE sessions SET mood = 'better'")
    migrate_sqlite(connection, [*load_migrations("sqlite"), MOOD])
    assert connection.execute("SELECT mood FROM sessions").fetchall() == [("better",)]


def test_an_empty_database_gets_every_migration_in_order(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as connection:
        migrate_sqlite(connection, [*load_migrations("sqlite"), MOOD])
        assert read_sqlite_version(connection) == SHIPPED + 1
        assert {"api_keys", "cache_controls", "events", "sessions", "calls", "days", "settings"} <= tables(connection)
        assert {"instruction_manifests", "instruction_audit", "boot_stubs"} < tables(connection)


def test_a_failed_migration_leaves_the_database_unchanged(connection: sqlite3.Connection, path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate_sqlite(connection, [*load_migrations("sqlite"), BROKEN])
    assert read_sqlite_version(connection) == SHIPPED
    assert "moods" not in tables(connection)
    with SqliteStore(path) as store:
        store.append([message_event(3)]).result(10)
        assert list(store.read("s")) == message_events(4)


def test_migrations_before_a_failed_one_remain(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as connection:
        migrate_sqlite(connection, load_migrations("sqlite")[:2])
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            migrate_sqlite(connection, [*load_migrations("sqlite"), BROKEN])
        assert read_sqlite_version(connection) == SHIPPED
        assert "api_keys" in tables(connection)


def test_a_database_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            migrate_sqlite(connection, [*load_migrations("sqlite"), BROKEN])
        assert read_sqlite_version(connection) == 0
        assert tables(connection) == set()


def test_concurrent_programs_migrate_one_database_once(path: Path) -> None:
    at_once = Barrier(3)
    failed: list[Exception] = []

    def migrate() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
            at_once.wait(10)
            try:
                migrate_sqlite(connection, [*load_migrations("sqlite"), MOOD])
            except sqlite3.Error as error:
                failed.append(error)

    threads = [Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_script_is_split_at_the_ends_of_its_statements() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM b;\n  DELETE FROM c;\nEND;\n"
    script = f"-- why; not\nCREATE TABLE a (\n  x TEXT\n);\n{trigger}SELECT ';\n';\nSELECT 2"
    assert list(split_statements(script)) == [
        "-- why; not\nCREATE TABLE a (\n  x TEXT\n);\n",
        trigger,
        "SELECT ';\n';\n",
        "SELECT 2",
    ]
    assert list(split_statements("SELECT 1;\n\n  \n")) == ["SELECT 1;\n"]
