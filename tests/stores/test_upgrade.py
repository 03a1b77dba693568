"""A store of the version before replicas is upgraded, on PostgreSQL while programs of both versions are using it.

`tests/golden/statements_before_replicas.json` has every statement that a program of commit 369305ef sent (schema
version 13), recorded at the driver: some before the upgrade, then appends, reads, a deletion, pruning, analytics,
budgets. The migrations up to 13 are still those of that commit.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest
from tests.support.event_examples import call_events
from tests.support.postgres_server import run

from holdfast.catalog.lookup import shipped_models
from holdfast.errors import StoreError
from holdfast.stores.maintenance import find_differences
from holdfast.stores.migrate import Migration, load_migrations, migrate_sqlite
from holdfast.stores.postgres.server import PostgresConnection, migrate_postgres
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.dialect import SQLITE
from holdfast.stores.sql.events import INSERT_EVENT
from holdfast.stores.sqlite.store import SqliteStore

OLD_VERSION = 13
RECORDING = Path(__file__).parents[1] / "golden" / "statements_before_replicas.json"
OLD_MIGRATIONS_SHA256 = {
    "postgres": "45f8d5d8bc9c6a3ffd53e39b261fd6a4a662bde7c99d6ffc730e607743c2f81b",
    "sqlite": "dcbee93670494673fea22ced71c37c3e39fc08f3db010833d3fc553dc32c3998",
}


class Statement(msgspec.Struct, frozen=True):
    phase: str
    kind: str
    statement: str
    rows: list[list[object]]


STATEMENTS = msgspec.json.decode(RECORDING.read_bytes(), type=list[Statement])


@pytest.fixture
def old_program(postgres: str) -> Iterator[PostgresConnection]:
    """The connection of a program of the old version, with what it has written so far."""
    with closing(psycopg.connect(postgres, autocommit=True, prepare_threshold=None)) as connection:
        migrate_postgres(connection, load_migrations("postgres")[:OLD_VERSION], "here")
        connection.execute(b"UPDATE holdfast.ledger SET version = 5")
        replay(connection, "before")
        yield connection


def replay(connection: PostgresConnection, phase: str) -> None:
    for entry in STATEMENTS:
        if entry.phase != phase:
            continue
        with connection.cursor() as cursor:
            match entry.kind:
                case "copy":
                    with cursor.copy(entry.statement.encode()) as copy:
                        for row in entry.rows:
                            copy.write_row(row)
                case "executemany":
                    cursor.executemany(entry.statement.encode(), entry.rows)
                case _:
                    cursor.execute(entry.statement.encode(), entry.rows[0] if entry.rows else None)


@pytest.mark.parametrize("dialect", OLD_MIGRATIONS_SHA256)
def test_the_migrations_of_the_old_version_are_unchanged(dialect: str) -> None:
    script = "".join(migration.sql for migration in load_migrations(dialect)[:OLD_VERSION])
    assert hashlib.sha256(script.encode()).hexdigest() == OLD_MIGRATIONS_SHA256[dialect]


def test_rows_survive_and_programs_of_both_versions_work_side_by_side(
    old_program: PostgresConnection, postgres: str
) -> None:
    with PostgresStore(postgres, migration_mode="migrate") as store:
        assert [len(list(store.read(session_id))) for session_id in "ab"] == [13, 8]
        store.append(call_events(20, "new")).result(10)
        replay(old_program, "during")
        store.append(call_events(20, "new", start=20)).result(10)
        events = list(store.read("a"))
        assert [event.parent_event_id for event in events[1:]] == [event.id for event in events[:-1]]
        assert len(events) == 25
        assert list(store.read("b")) == []
        assert store.cost_queries().totals().calls == 6 + 2 + 10
        assert list(find_differences(store, shipped_models())) == []
        assert store.records.get_budget_day("key", "2025-11-13").spent == 500


def test_a_program_that_needs_a_newer_schema_does_not_start_and_changes_nothing(
    old_program: PostgresConnection, postgres: str
) -> None:
    newest = len(load_migrations("postgres"))
    line = f"has schema version 13, this Holdfast needs {newest}: run `holdfast db migrate` on it"
    with pytest.raises(StoreError, match=line):
        PostgresStore(postgres)
    assert run(postgres, "SELECT max(version) FROM holdfast.versions") == [(OLD_VERSION,)]


def test_a_program_works_on_a_newer_schema_that_only_adds(postgres: str) -> None:
    """So that it can be started again during an upgrade, or after an upgrade that is taken back."""
    PostgresStore(postgres).close()
    shipped = load_migrations("postgres")
    added = Migration(len(shipped) + 1, "mood", "ALTER TABLE holdfast.sessions ADD mood text;")
    broken = Migration(len(shipped) + 2, "moved", f"-- oldest program: {len(shipped) + 2}\nSELECT 1;")
    with closing(psycopg.connect(postgres, autocommit=True)) as connection:
        migrate_postgres(connection, [*shipped, added], "here")
        with PostgresStore(postgres) as store:
            store.append(call_events(4)).result(10)
            assert len(list(store.read("s"))) == 4
        migrate_postgres(connection, [*shipped, added, broken], "here")
    with pytest.raises(StoreError, match="was written by a newer Holdfast"):
        PostgresStore(postgres)


def test_a_migration_that_cannot_be_undone_is_refused_until_a_person_agrees(postgres: str) -> None:
    PostgresStore(postgres).close()
    shipped = load_migrations("postgres")
    sql = "-- irreversible: names of sessions are removed\nALTER TABLE holdfast.sessions DROP COLUMN name;"
    removal = [*shipped, Migration(len(shipped) + 1, "nameless", sql)]
    with closing(psycopg.connect(postgres, autocommit=True)) as connection:
        with pytest.raises(StoreError, match=r"cannot be undone \(names of sessions are removed\): back up"):
            migrate_postgres(connection, removal, "here")
        assert run(postgres, "SELECT max(version) FROM holdfast.versions") == [(len(shipped),)]
        migrate_postgres(connection, removal, "here", irreversible=True)


@pytest.mark.parametrize("dialect", OLD_MIGRATIONS_SHA256)
def test_no_migration_removes_a_table_or_column_without_saying_so(dialect: str) -> None:
    for migration in load_migrations(dialect):
        removes = any(words in migration.sql.upper() for words in ("DROP TABLE", "DROP COLUMN", "TRUNCATE"))
        assert not removes or migration.irreversible_reason, migration.name


def test_a_file_of_the_old_version_is_migrated_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        migrate_sqlite(file, load_migrations("sqlite")[:OLD_VERSION])
        file.execute(
            "INSERT INTO sessions (id, model, started_at, last_event_at, event_count) VALUES ('a', 'm', 0, 1, 13)"
        )
        rows = next(entry.rows for entry in STATEMENTS if entry.kind == "copy")
        file.executemany(SQLITE.translate(INSERT_EVENT), rows)
    with SqliteStore(path) as store:
        assert [event.id for event in store.read("a")] == [row[0] for row in rows]
        assert store.cost_queries().totals().calls == 3
        assert list(find_differences(store, shipped_models())) == []
