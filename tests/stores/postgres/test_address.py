"""Which PostgreSQL databases the store accepts, and its errors for those it cannot use."""

import subprocess
import sys
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from tests.support.event_examples import message_events
from tests.support.postgres_server import new_database, run, server_url

from holdfast.errors import HoldfastError, StoreError, UserError
from holdfast.stores.address import redact_address
from holdfast.stores.migrate import load_migrations
from holdfast.stores.open import open_store
from holdfast.stores.postgres.server import parse_address
from holdfast.stores.postgres.store import PostgresStore


def refusal_message(address: str) -> str:
    """The one-line error with which a store is not opened; it never contains the password."""
    with pytest.raises(HoldfastError) as refusal:
        open_store(address)
    line = str(refusal.value)
    assert "\n" not in line
    assert "secret" not in line
    return line


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_an_address_opens_the_database_it_names(postgres: str, scheme: str) -> None:
    with closing(open_store(f"{scheme}{postgres.removeprefix('postgresql')}")) as store:
        assert isinstance(store, PostgresStore)
        store.append(message_events(2)).result(10)
    assert run(postgres, "SELECT count(*) FROM holdfast.events") == [(2,)]


def test_other_content_of_the_database_is_not_changed(postgres: str) -> None:
    run(postgres, "CREATE TABLE public.events (mine text)", "INSERT INTO public.events VALUES ('x')")
    with PostgresStore(postgres) as store:
        store.append(message_events(2)).result(10)
        assert store.delete("s") == 2
    assert run(postgres, "SELECT * FROM public.events") == [("x",)]


def test_a_wrong_password_is_reported_in_one_line(postgres: str) -> None:
    if ":" not in urlsplit(postgres).netloc.rpartition("@")[0]:
        pytest.skip("the server was given without a password")
    wrong = postgres.replace(urlsplit(postgres).netloc.rpartition("@")[0], "holdfast:secret")
    line = refusal_message(wrong)
    assert line == (
        f'{redact_address(wrong)} cannot be reached (FATAL:  password authentication failed for user "holdfast"): '
        "check that the server runs, and user, password and database"
    )


def test_a_missing_database_is_named(postgres: str) -> None:
    assert 'database "nope" does not exist' in refusal_message(urlsplit(postgres)._replace(path="/nope").geturl())


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql://me:secret@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db cannot be reached ("),
        ("postgresql://me:secret@[::1]:1/db", "postgresql://[::1]:1/db cannot be reached ("),
        ("postgresql://a..b/db?password=secret", "postgresql://a..b/db cannot be reached (the reason is withheld"),
        (
            "postgresql://127.0.0.1:1/db?password=refused",
            "cannot be reached (the reason is withheld: it could contain the password): check",
        ),
        ("postgresql:///d%0Ab?host=/no%0Asuch&password=secret", "postgresql:///d%0Ab cannot be reached ("),
    ],
)
def test_an_unreachable_server_is_named_without_the_password(address: str, name: str) -> None:
    assert name in refusal_message(address)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:sec/secret@host/db",
        "postgresql://me:12/secret@host/db",
        "postgresql://me:sec@secret@host/db",
        "postgresql://me:sec?secret@host/db",
        "postgresql://me:secret/db",
        "postgresql://host/db?secret",
        "postgresql://me:%ff@host/db",
        "postgresql://me:%@host/db",
        "postgresql://me:\udcff@host/db",
    ],
)
def test_an_ambiguous_address_is_refused_and_not_quoted(address: str) -> None:
    assert refusal_message(address).startswith(
        "this PostgreSQL address cannot be parsed: write postgresql://USER:PASSWORD@"
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://me:secret@host:1/db?sslmode=require", "postgresql://host:1/db"),
        ("POSTGRES://me:secret@a:1,b:2/db", "postgres://a:1,b:2/db"),
        ("postgresql://host/db?password=secret", "postgresql://host/db"),
        ("postgresql://me:se/cret@host", "postgresql://..."),
        ("postgresql://me:secret", "postgresql://..."),
        ("postgresql://h\x1b[31m\n/db", "postgresql://..."),
        ("postgresql://h\x1b\n/db", "postgresql://h??/db"),
        ("sqlite:///log.db", "sqlite:///log.db"),
        ("C:\\log.db", "C:\\log.db"),
    ],
)
def test_a_shown_address_omits_the_password(address: str, expected: str) -> None:
    assert redact_address(address) == expected


def test_a_parsed_address_does_not_print_its_password() -> None:
    assert repr(parse_address("postgresql://me:secret@host/db")) == "Address('postgresql://host/db')"


def test_a_missing_driver_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"PostgreSQL needs its driver: pip install 'holdfast-context\[postgres\]'"):
        open_store("postgresql://me:secret@host/db")


def test_the_driver_is_not_loaded_for_another_store() -> None:
    program = "import sys; from holdfast.stores.open import open_store; open_store('memory:').close(); "
    program += "print('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_a_database_of_a_newer_version_is_refused_and_not_changed(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        store.append(message_events(1)).result(10)
    newest = len(load_migrations("postgres"))
    run(postgres, f"INSERT INTO holdfast.versions VALUES ({newest + 1}, 'mood', now(), {newest + 1})")
    assert refusal_message(postgres).endswith(
        f" was written by a newer Holdfast (schema version {newest + 1}, this one knows {newest}): "
        "upgrade holdfast, or use another database"
    )
    assert run(postgres, "SELECT count(*) FROM holdfast.events") == [(1,)]


def test_a_schema_of_another_program_is_refused_and_not_changed(postgres: str) -> None:
    run(postgres, "CREATE SCHEMA holdfast", "CREATE TABLE holdfast.boats (name text)")
    assert refusal_message(postgres).endswith("has a schema 'holdfast' of another program: use another database")
    assert run(postgres, "SELECT count(*) FROM pg_tables WHERE schemaname = 'holdfast'") == [(1,)]


def test_an_empty_schema_that_was_created_for_the_store_is_used(postgres: str) -> None:
    run(postgres, "CREATE SCHEMA holdfast")
    with PostgresStore(postgres) as store:
        store.append(message_events(1)).result(10)
        assert list(store.read("s")) == message_events(1)


def test_a_database_that_cannot_store_every_character_is_refused() -> None:
    with new_database(options="TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'") as url:
        assert refusal_message(url).endswith(
            "cannot store every character (its encoding is LATIN1): create a database with UTF8"
        )


def test_a_user_without_the_right_to_create_tables_gets_an_error(postgres: str) -> None:
    role = urlsplit(postgres).path.removeprefix("/") + "_guest"
    run(server_url(), f"CREATE ROLE {role} LOGIN PASSWORD 'guest'")
    try:
        guest = postgres.replace(urlsplit(postgres).netloc.rpartition("@")[0], f"{role}:guest")
        line = "have its owner grant what is missing on schema holdfast"
        assert refusal_message(guest) == f"no permission to use {redact_address(postgres)}: {line}"
        with PostgresStore(postgres) as store:
            store.append(message_events(1)).result(10)
        rights = ("USAGE ON SCHEMA holdfast", "SELECT ON ALL TABLES IN SCHEMA holdfast")
        run(postgres, *(f"GRANT {right} TO {role}" for right in rights))
        with PostgresStore(guest) as store:
            assert list(store.read("s")) == message_events(1)
            error = store.append(message_events(1, start=1)).exception(timeout=10)
        assert isinstance(error, StoreError)
        assert "no permission to use" in str(error)
    finally:
        run(postgres, f"DROP OWNED BY {role}")
        run(server_url(), f"DROP ROLE {role}")
