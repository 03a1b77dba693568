"""Connects to a PostgreSQL server, checks it, and migrates its database to the current schema."""

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
SILENCE_SECONDS_MAX = 30  # Without an answer for this long, TCP declares the connection dead.

SERVER_VERSION_MIN = 13_00_00  # pg_current_xact_id and pg_xact_status with xid8 exist since PostgreSQL 13.

SCHEMA = "holdfast."

_MIGRATION_LOCK = 0x484F4C44  # "HOLD" in ASCII; the key of the advisory lock.

_DEFAULT_OPTIONS: dict[str, str | int | None] = {
    "application_name": "holdfast",
    "connect_timeout": CONNECT_SECONDS_MAX,
    "keepalives_idle": SILENCE_SECONDS_MAX,
    "tcp_user_timeout": SILENCE_SECONDS_MAX * 1000,
}

Connection = psycopg.Connection[tuple[object, ...]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum time for a lock and for a statement."""

    lock_seconds_max: float = LOCK_SECONDS_MAX
    statement_seconds_max: float = STATEMENT_SECONDS_MAX


def connect(address: Address, limits: Limits) -> Connection:
    """A connection in autocommit mode; raises psycopg.Error.

    Prepared statements are off: behind a connection pooler the next statement may run on another server connection.
    """
    options = conninfo_to_dict(address.url)
    defaults = {name: value for name, value in _DEFAULT_OPTIONS.items() if name not in options}
    target = make_conninfo(address.url, client_encoding="UTF8", **defaults)
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
    """A connection to a database with the current schema; raises StoreError."""
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
        raise StoreError(f"{name} runs a PostgreSQL older than 13: upgrade it, or use another server")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"{name} cannot store every character (its encoding is {encoding}): create a database with UTF8"
        )


def bring_forward(connection: Connection, migrations: Sequence[Migration], name: str) -> None:
    """Applies the missing migrations, each in one transaction; several processes may do so concurrently."""
    while _check_version(connection, len(migrations), name) < len(migrations):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            # Read again under the lock: another process may have applied it in the meantime.
            version = _check_version(connection, len(migrations), name)
            if version == 0 and not _fetch_int(
                connection, "SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'"
            ):
                connection.execute("CREATE SCHEMA holdfast")
            for migration in migrations[version : version + 1]:
                connection.execute(migration.sql)
                connection.execute(
                    "INSERT INTO holdfast.versions (version, name) VALUES (%s, %s)", (migration.version, migration.name)
                )


def _check_version(connection: Connection, version_max: int, name: str) -> int:
    version = version_of(connection, name)
    if version > version_max:
        raise StoreError(
            f"{name} was written by a newer Holdfast (schema version {version}, this one knows {version_max}): "
            "upgrade holdfast, or use another database"
        )
    return version


def version_of(connection: Connection, name: str) -> int:
    """The number of the last migration, 0 if there is none. Raises StoreError if another program owns the schema."""
    tables = _fetch_int(
        connection,
        "SELECT count(*) FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = 'holdfast'",
    )
    if not tables:
        return 0
    if not _fetch_int(connection, "SELECT count(to_regclass('holdfast.versions'))"):
        raise StoreError(f"{name} has a schema 'holdfast' of another program: use another database")
    return _fetch_int(connection, "SELECT coalesce(max(version), 0) FROM holdfast.versions")


def _fetch_int(connection: Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]
