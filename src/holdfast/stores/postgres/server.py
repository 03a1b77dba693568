"""A PostgreSQL server: its address, connections, checks and migration, error messages, and text that it can store."""

from collections.abc import Sequence

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import StoreError, UserError
from holdfast.stores.address import is_unambiguous_address, redact_address
from holdfast.stores.migrate import Migration

# An append waits for these: long enough for a busy server, short enough that a dead one is noticed.
CONNECT_SECONDS_MAX = 10
LOCK_SECONDS_MAX = 10.0
STATEMENT_SECONDS_MAX = 60.0
TCP_TIMEOUT_SECONDS = 30  # Without an answer for this long, TCP declares the connection dead.
SERVER_VERSION_MIN = 13_00_00  # pg_current_xact_id and pg_xact_status with xid8 exist since PostgreSQL 13.
SCHEMA_PREFIX = "holdfast."
_MIGRATION_LOCK = 0x484F4C44  # "HOLD" in ASCII; the key of the advisory lock.

_DEFAULT_OPTIONS: dict[str, str | int | None] = {
    "application_name": "holdfast",
    "connect_timeout": CONNECT_SECONDS_MAX,
    "keepalives_idle": TCP_TIMEOUT_SECONDS,
    "tcp_user_timeout": TCP_TIMEOUT_SECONDS * 1000,
}

PostgresConnection = psycopg.Connection[tuple[object, ...]]
_REASON_CHARACTERS_MAX = 200  # Of a server's message: an error is one line.

# PostgreSQL text cannot contain NUL: NUL and the escape character \x01 become two characters each.
_ESCAPES = str.maketrans({"\x00": "\x01\x01", "\x01": "\x01\x02"})


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum time for a lock and for a statement, and whether the server refuses every change."""

    lock_seconds_max: float = LOCK_SECONDS_MAX
    statement_seconds_max: float = STATEMENT_SECONDS_MAX
    read_only: bool = False


class PostgresAddress(msgspec.Struct, frozen=True):
    """`url` may contain a password; `name` never does."""

    url: str
    name: str
    password: str

    def __repr__(self) -> str:
        return f"Address({self.name!r})"


def connect_postgres(address: PostgresAddress, limits: ConnectionLimits) -> PostgresConnection:
    """A connection in autocommit mode; raises psycopg.Error.

    Prepared statements are off: behind a connection pooler the next statement may run on another server connection.
    """
    options = conninfo_to_dict(address.url)
    defaults = {name: value for name, value in _DEFAULT_OPTIONS.items() if name not in options}
    target = make_conninfo(address.url, client_encoding="UTF8", **defaults)
    connection: PostgresConnection = psycopg.connect(target, autocommit=True, prepare_threshold=None)
    try:
        connection.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)",
            (_milliseconds(limits.lock_seconds_max), _milliseconds(limits.statement_seconds_max)),
        )
        if limits.read_only:
            connection.execute("SET default_transaction_read_only = on")
    except BaseException:
        connection.close()
        raise
    return connection


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def open_postgres_database(
    address: PostgresAddress, migrations: Sequence[Migration], limits: ConnectionLimits
) -> PostgresConnection:
    """A connection to a database with the current schema; raises StoreError."""
    try:
        connection = connect_postgres(address, limits)
    except (psycopg.Error, UnicodeError) as error:
        raise explain_unreachable(error, address) from error
    try:
        _check_server(connection, address.name)
        if limits.read_only:
            _check_migrated(connection, len(migrations), address.name)
        else:
            migrate_postgres(connection, migrations, address.name)
    except psycopg.Error as error:
        connection.close()
        raise explain_postgres_error(error, address.name) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _check_server(connection: PostgresConnection, name: str) -> None:
    if connection.info.server_version < SERVER_VERSION_MIN:
        raise StoreError(f"{name} runs a PostgreSQL older than 13: upgrade it, or use another server")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"{name} cannot store every character (its encoding is {encoding}): create a database with UTF8"
        )


def migrate_postgres(connection: PostgresConnection, migrations: Sequence[Migration], name: str) -> None:
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


def _check_migrated(connection: PostgresConnection, version: int, name: str) -> None:
    stored = _check_version(connection, version, name)
    if stored == 0:
        raise StoreError(f"{name} holds no store: check the address")
    if stored < version:
        raise StoreError(
            f"{name} has schema version {stored}, this Holdfast reads {version}: run `holdfast db migrate` on it"
        )


def _check_version(connection: PostgresConnection, version_max: int, name: str) -> int:
    version = read_postgres_version(connection, name)
    if version > version_max:
        raise StoreError(
            f"{name} was written by a newer Holdfast (schema version {version}, this one knows {version_max}): "
            "upgrade holdfast, or use another database"
        )
    return version


def read_postgres_version(connection: PostgresConnection, name: str) -> int:
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


def _fetch_int(connection: PostgresConnection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]


def parse_address(url: str) -> PostgresAddress:
    """Raises UserError, quoting nothing of the address, unless it can be parsed unambiguously."""
    if not is_unambiguous_address(url):
        raise _invalid_address()
    try:
        options = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError) as error:
        raise _invalid_address() from error
    return PostgresAddress(url, redact_address(url), str(options.get("password") or ""))


def _invalid_address() -> UserError:
    return UserError(
        "this PostgreSQL address cannot be parsed: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
        "with / : @ ? # and % in a name or password as %2F %3A %40 %3F %23 and %25"
    )


def explain_unreachable(error: psycopg.Error | UnicodeError, address: PostgresAddress) -> StoreError:
    """Why the connection failed, in the server's words unless they contain the password."""
    # A UnicodeError for an invalid host name quotes it, and with it possibly the password.
    first_line = "" if isinstance(error, UnicodeError) else str(error).strip().partition("\n")[0]
    message = first_line.rpartition(" failed: ")[2]
    reason = "".join(character if character.isprintable() else " " for character in message)[:_REASON_CHARACTERS_MAX]
    if not reason or (address.password and address.password in first_line):
        reason = "the reason is withheld: it could contain the password"
    return StoreError(
        f"{address.name} cannot be reached ({reason}): check that the server runs, and user, password and database"
    )


def explain_postgres_error(error: psycopg.Error, name: str) -> StoreError:
    """One line that says what to do. PostgreSQL's own message is left out: it can quote a row."""
    match error.sqlstate:
        case "53100":
            return StoreError(f"the disk of {name} is full: free some space, then open the store again")
        case "42501":
            return StoreError(f"no permission to use {name}: have its owner grant what is missing on schema holdfast")
        case "25006":
            return StoreError(f"{name} is read-only: use the address of the primary server")
        case "55P03" | "57014" | "40P01" | "40001":
            return StoreError(f"{name} is locked by another program, or too slow: try again later")
        case "XX001" | "XX002":
            return StoreError(f"{name} is damaged: restore the database from a backup")
        case "42P01" | "42703" | "3F000":
            return StoreError(
                f"{name} is missing tables that Holdfast created there: restore the database from a backup"
            )
        case None | "57P01" | "57P02" | "57P03" | "08000" | "08003" | "08006" | "25P03":
            return StoreError(f"the connection to {name} was lost: check the server, then open the store again")
        case code:
            return StoreError(f"{name} cannot be used (PostgreSQL error {code}): check the server's log")


def escape_nul(cell: object) -> object:
    return cell.translate(_ESCAPES) if isinstance(cell, str) and ("\x00" in cell or "\x01" in cell) else cell


def unescape_nul(cell: object) -> object:
    if not isinstance(cell, str) or "\x01" not in cell:
        return cell
    return cell.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")
