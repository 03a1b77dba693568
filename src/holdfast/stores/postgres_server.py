"""How a PostgreSQL server is reached, and how its database becomes what this version expects."""

from collections.abc import Sequence

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import StoreError
from holdfast.stores.migrate import Migration
from holdfast.stores.postgres_address import Address, explain, unreachable

CONNECT_SECONDS_MAX = 10
LOCK_SECONDS_MAX = 10.0
STATEMENT_SECONDS_MAX = 60.0
SILENCE_SECONDS_MAX = 30

SERVER_VERSION_MIN = 13_00_00

SCHEMA = "holdfast."

_MIGRATION_LOCK = 0x484F4C44  # "HOLD"

_UNLESS_TOLD: dict[str, str | int | None] = {
    "application_name": "holdfast",
    "connect_timeout": CONNECT_SECONDS_MAX,
    "keepalives_idle": SILENCE_SECONDS_MAX,
    "tcp_user_timeout": SILENCE_SECONDS_MAX * 1000,
}

Connection = psycopg.Connection[tuple[object, ...]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a lock and a statement may take."""

    lock_seconds_max: float = LOCK_SECONDS_MAX
    statement_seconds_max: float = STATEMENT_SECONDS_MAX


def connect(address: Address, limits: Limits) -> Connection:
    """A connection that commits each statement unless told to begin; raises psycopg.Error.

    Nothing is prepared on the server: behind a pooler the next statement may find another one.
    """
    told = conninfo_to_dict(address.url)
    unsaid = {name: value for name, value in _UNLESS_TOLD.items() if name not in told}
    target = make_conninfo(address.url, client_encoding="UTF8", **unsaid)
    connection: Connection = psycopg.connect(target, autocommit=True, prepare_threshold=None)
    try:
        connection.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)",
            (_milliseconds(limits.lock_seconds_max), _milliseconds(limits.statement_seconds_max)),
        )
    except BaseException:
        connection.close()
        raise
    return connection


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def open_database(address: Address, migrations: Sequence[Migration], limits: Limits) -> Connection:
    """A connection to a database of the newest version; raises StoreError."""
    try:
        connection = connect(address, limits)
    except (psycopg.Error, UnicodeError) as error:
        raise unreachable(error, address) from error
    try:
        _check_server(connection, address.name)
        bring_forward(connection, migrations, address.name)
    except psycopg.Error as error:
        connection.close()
        raise explain(error, address.name) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _check_server(connection: Connection, name: str) -> None:
    if connection.info.server_version < SERVER_VERSION_MIN:
        raise StoreError(f"{name} is a server older than PostgreSQL 13: upgrade it, or name another")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{name} cannot hold every character (its encoding: {encoding}): make one with UTF8")


def bring_forward(connection: Connection, migrations: Sequence[Migration], name: str) -> None:
    """Apply what is missing, each migration whole or not at all; several processes may do so at once."""
    while _version_known(connection, len(migrations), name) < len(migrations):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            # Read again under the lock: another process may have been faster.
            version = _version_known(connection, len(migrations), name)
            if version == 0 and not _answer(connection, "SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'"):
                connection.execute("CREATE SCHEMA holdfast")
            for migration in migrations[version : version + 1]:
                connection.execute(migration.sql)
                connection.execute(
                    "INSERT INTO holdfast.versions (version, name) VALUES (%s, %s)", (migration.version, migration.name)
                )


def _version_known(connection: Connection, version_max: int, name: str) -> int:
    version = version_of(connection, name)
    if version > version_max:
        raise StoreError(
            f"{name} was written by a newer Holdfast (its version: {version}, known here: {version_max}): "
            "upgrade holdfast, or name another database"
        )
    return version


def version_of(connection: Connection, name: str) -> int:
    """The number of the last migration; 0 where there was none. What another program made is refused."""
    tables = _answer(
        connection,
        "SELECT count(*) FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = 'holdfast'",
    )
    if not tables:
        return 0
    if not _answer(connection, "SELECT count(to_regclass('holdfast.versions'))"):
        raise StoreError(f"{name} has a schema 'holdfast' of another program: name another database")
    return _answer(connection, "SELECT coalesce(max(version), 0) FROM holdfast.versions")


def _answer(connection: Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]
