"""Migration of a PostgreSQL database of an older version."""

from collections.abc import Iterator
from contextlib import closing
from threading import Barrier, Thread

import psycopg
import pytest
from tests.support.event_examples import message_event, message_events
from tests.support.postgres_server import run

from holdfast.stores.migrate import Migration, load_migrations
from holdfast.stores.postgres.server import PostgresConnection, migrate_postgres, read_postgres_version
from holdfast.stores.postgres.store import PostgresStore

SHIPPED = load_migrations("postgres")
MOOD = Migration(
    len(SHIPPED) + 1,
    "mood",
    "ALTER TABLE holdfast.sessions ADD mood text;\nUPDATE holdfast.sessions SET mood = 'fine';",
)
BROKEN = Migration(
    len(SHIPPED) + 1, "broken", "CREATE TABLE holdfast.moods (name text);\nINSERT INTO holdfast.nowhere VALUES (1);"
)


@pytest.fixture
def written_database(postgres: str) -> str:
    with PostgresStore(postgres) as store:
        store.append(message_events(3)).result(10)
    return postgres


@pytest.fixture
def connection(written_database: str) -> Iterator[PostgresConnection]:
    with closing(psycopg.connect(written_database, autocommit=True)) as connection:
        yield connection


def test_both_engines_have_the_same_migrations() -> None:
    numbered = [(migration.version, migration.name) for migration in SHIPPED]
    assert numbered == [(migration.version, migration.name) for migration in load_migrations("sqlite")]


def test_a_database_records_its_migrations(written_database: str) -> None:
    applied = run(written_database, "SELECT version, name FROM holdfast.versions ORDER BY version")
    assert applied == [(migration.version, migration.name) for migration in SHIPPED]


def test_the_first_version_is_migrated_with_its_content(postgres: str) -> None:
    with closing(psycopg.connect(postgres, autocommit=True)) as connection:
        migrate_postgres(connection, SHIPPED[:1], "here")
        assert read_postgres_version(connection, "here") == 1
    run(
        postgres,
        "INSERT INTO holdfast.sessions VALUES ('s', 'old', 'm', 1, 1, 1)",
        "INSERT INTO holdfast.events (id, at, session_id, type, actor, sensitivity, version, payload) "
        "VALUES ('s-000000', 1800000000, 's', 'message.appended', 'user', 'low', 1, "
        """'{"type":"message.appended","message":{"role":"user","content":[{"type":"text","text":"message 0"}]}}')""",
    )
    with PostgresStore(postgres, migration_mode="migrate") as store:
        assert list(store.read("s")) == message_events(1)
        assert store.sessions()[0].name == "old"
    assert run(postgres, "SELECT max(version) FROM holdfast.versions") == [(len(SHIPPED),)]


def test_a_migration_runs_once(connection: PostgresConnection) -> None:
    migrate_postgres(connection, [*SHIPPED, MOOD], "here")
    connection.execute("UPDATE holdfast.sessions SET mood = 'better'")
    migrate_postgres(connection, [*SHIPPED, MOOD], "here")
    assert connection.execute("SELECT mood FROM holdfast.sessions").fetchall() == [("better",)]


def test_a_failed_migration_leaves_the_database_unchanged(
    connection: PostgresConnection, written_database: str
) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"):
        migrate_postgres(connection, [*SHIPPED, BROKEN], "here")
    assert read_postgres_version(connection, "here") == len(SHIPPED)
    assert run(written_database, "SELECT to_regclass('holdfast.moods')") == [(None,)]
    with PostgresStore(written_database) as store:
        store.append([message_event(3)]).result(10)
        assert list(store.read("s")) == message_events(4)


def test_concurrent_programs_migrate_one_database_once(postgres: str) -> None:
    at_once = Barrier(3)
    failed: list[Exception] = []

    def migrate() -> None:
        with closing(psycopg.connect(postgres, autocommit=True)) as connection:
            at_once.wait(10)
            try:
                migrate_postgres(connection, [*SHIPPED, MOOD], "here")
            except psycopg.Error as error:
                failed.append(error)

    threads = [Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert run(postgres, "SELECT count(*) FROM holdfast.versions") == [(len(SHIPPED) + 1,)]
