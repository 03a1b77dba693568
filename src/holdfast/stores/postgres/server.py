"""A PostgreSQL server: address, connections, migration, notifications, errors, and text that it can store."""

import logging
import threading
from collections.abc import Callable, Sequence

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import StoreError, UserError
from holdfast.stores.address import is_unambiguous_address, redact_address
from holdfast.stores.migrate import Migration, MigrationMode, refuse_irreversible
from holdfast.stores.sql.connection import SqlConnection
from holdfast.stores.sql.dialect import POSTGRES

# An append waits for these: long enough for a busy server, short enough that a dead one is noticed.
CONNECT_SECONDS_MAX = 10
LOCK_SECONDS_MAX = 10.0
STATEMENT_SECONDS_MAX = 60.0
TCP_TIMEOUT_SECONDS = 30  # Without an answer for this long, TCP declares the connection dead.
SERVER_VERSION_MIN = 13_00_00  # pg_current_xact_id and pg_xact_status with xid8 exist since PostgreSQL 13.
_MIGRATION_LOCK = 0x484F4C44  # "HOLD" in ASCII; the key of the advisory lock.

CHANNEL = "holdfast_events"
NOTIFY_SECONDS_MIN = 0.05
"""How often a writer notifies at most. The server runs notifying commits one after another, so there must be few."""

# The notification itself is not worth a wait for the disk, and must not be part of a transaction that is.
NOTIFY = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}; COMMIT"

WAIT_SECONDS = 1.0
RECONNECT_SECONDS = 1.0

logger = logging.getLogger(__name__)

_DEFAULT_OPTIONS: dict[str, str | int | None] = {
    "application_name": "holdfast",
    "connect_timeout": CONNECT_SECONDS_MAX,
    "keepalives_idle": TCP_TIMEOUT_SECONDS,
    "tcp_user_timeout": TCP_TIMEOUT_SECONDS * 1000,
}

PostgresConnection = psycopg.Connection[tuple[object, ...]]
_REASON_CHARACTERS_MAX = 200  # Of a server's message: an error is one line.


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

    Prepared statements are off: behind a connection pooler the next statement may run on another server connection. For
    the same reason limits are set for a session only where there is no pooler: another client would inherit them.
    """
    options = conninfo_to_dict(address.url)
    defaults = {name: value for name, value in _DEFAULT_OPTIONS.items() if name not in options}
    target = make_conninfo(address.url, client_encoding="UTF8", **defaults)
    connection: PostgresConnection = psycopg.connect(target, autocommit=True, prepare_threshold=None)
    try:
        if not is_pooled(connection):
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


def is_pooled(connection: PostgresConnection) -> bool:
    """Whether a pooler is in between: it makes up the process id that a server sends when a connection begins."""
    return connection.info.backend_pid != _fetch_int(connection, "SELECT pg_backend_pid()")


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def open_postgres_database(
    address: PostgresAddress,
    migrations: Sequence[Migration],
    limits: ConnectionLimits,
    migration_mode: MigrationMode = "create",
) -> PostgresConnection:
    """A connection to a database with the current schema; raises StoreError.

    Only an empty database is changed without being asked to: other programs may be working on one of an older version.
    """
    try:
        connection = connect_postgres(address, limits)
    except (psycopg.Error, UnicodeError) as error:
        raise explain_unreachable(error, address) from error
    try:
        _check_server(connection, address.name)
        stored = _check_version(connection, len(migrations), address.name)
        if limits.read_only or (stored and migration_mode == "create"):
            _check_migrated(stored, len(migrations), address.name)
        else:
            is_agreed = migration_mode == "irreversible"
            migrate_postgres(connection, migrations, address.name, irreversible=is_agreed)
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


def migrate_postgres(
    connection: PostgresConnection, migrations: Sequence[Migration], name: str, *, irreversible: bool = False
) -> None:
    """Applies the missing migrations; several processes may do so concurrently.

    Each is one transaction, except in an empty database, which another process must not find half created.
    """
    while (version := _check_version(connection, len(migrations), name)) < len(migrations):
        if version and not irreversible:
            refuse_irreversible(migrations[version], name)
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            connection.execute("SET LOCAL statement_timeout = 0")
            # Read again under the lock: another process may have applied it in the meantime.
            version = _check_version(connection, len(migrations), name)
            if version == 0 and not _fetch_int(
                connection, "SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'"
            ):
                connection.execute("CREATE SCHEMA holdfast")
            for migration in migrations[version : version + 1] if version else migrations:
                _apply_migration(connection, migration)


def _apply_migration(connection: PostgresConnection, migration: Migration) -> None:
    connection.execute(migration.sql)
    connection.execute(
        "INSERT INTO holdfast.versions (version, name) VALUES (%s, %s)", (migration.version, migration.name)
    )
    if migration.oldest_program > 1:
        connection.execute(
            "UPDATE holdfast.versions SET oldest_program = %s WHERE version = %s",
            (migration.oldest_program, migration.version),
        )


def _check_migrated(stored: int, version: int, name: str) -> None:
    if stored == 0:
        raise StoreError(f"{name} holds no store: check the address")
    if stored < version:
        raise StoreError(
            f"{name} has schema version {stored}, this Holdfast needs {version}: run `holdfast db migrate` on it"
        )


def _check_version(connection: PostgresConnection, version_known: int, name: str) -> int:
    """The version of the database; raises StoreError if it has one that this program cannot work on."""
    version = read_postgres_version(connection, name)
    if version > version_known:
        needed = _fetch_int(connection, "SELECT max(oldest_program) FROM holdfast.versions")
        if needed > version_known:
            raise StoreError(
                f"{name} was written by a newer Holdfast (schema version {version}, this one knows {version_known}): "
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


_LOST = "the connection to {} was lost: check the server, then open the store again"
_LOCKED = "{} is locked by another program, or too slow: try again later"
_DAMAGED = "{} is damaged: restore the database from a backup"
_MISSING = "{} is missing tables that Holdfast created there: restore the database from a backup"
_BUG = "{} cannot run a statement of Holdfast ({}): report this as a bug in holdfast"

# By SQLSTATE, or by its class: the first two characters.
_EXPLANATIONS = {
    "08": _LOST,
    "23": "{} refused a change because of a constraint ({}): check for a duplicate",
    "25006": "{} is read-only: use the address of the primary server",
    "25P03": _LOST,
    "40001": _LOCKED,
    "40P01": _LOCKED,
    "42": _BUG,
    "42501": "no permission to use {}: have its owner grant what is missing on schema holdfast",
    "42703": _MISSING,
    "42P01": _MISSING,
    "3F000": _MISSING,
    "53100": "the disk of {} is full: free some space, then open the store again",
    "55P03": _LOCKED,
    "57": _LOST,
    "57014": _LOCKED,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}


def is_connection_failure(error: psycopg.Error) -> bool:
    """Whether the connection is of no more use, even if the driver has not noticed that it was closed.

    The server says goodbye before it hangs up. A driver that reads the one before the other still counts the connection
    as open, and in pipeline mode, which `executemany` uses, replaces the reason by an error of its own.
    """
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return _EXPLANATIONS.get(error.sqlstate) is _LOST or error.sqlstate[:2] == "08" or error.sqlstate[:4] == "57P0"


def explain_postgres_error(error: Exception, name: str) -> StoreError:
    """One line that says what to do. PostgreSQL's own message is left out: it can quote a row."""
    assert isinstance(error, psycopg.Error)
    code = error.sqlstate
    if code is None:
        # Found by the driver itself: the connection is gone, or the statement does not fit its parameters.
        line = _LOST if isinstance(error, psycopg.OperationalError) else _BUG
        return StoreError(line.format(name, type(error).__name__))
    unknown = "{} cannot be used ({}): check the server's log"
    line = _EXPLANATIONS.get(code) or _EXPLANATIONS.get(code[:2], unknown)
    return StoreError(line.format(name, error.diag.constraint_name or f"PostgreSQL error {code}"))


class PostgresServer:
    """The engine of one database."""

    dialect = POSTGRES
    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    violation: type[Exception] = psycopg.IntegrityError
    refusals: tuple[type[Exception], ...] = (
        *(psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded),
        *(psycopg.errors.RaiseException, OverflowError, UnicodeError),
    )

    def __init__(self, address: PostgresAddress, limits: ConnectionLimits) -> None:
        self.name = address.name
        self._address = address
        self._limits = limits

    def connect(self) -> PostgresConnection:
        try:
            return connect_postgres(self._address, self._limits)
        except psycopg.Error as error:
            raise _UnreachableError(str(explain_unreachable(error, self._address))) from error

    def is_lost(self, connection: SqlConnection) -> bool:
        assert isinstance(connection, psycopg.Connection)
        return connection.closed

    def is_current(self, connection: SqlConnection) -> bool:
        """Whether the server answers: one that was restarted has closed all pooled connections."""
        try:
            connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def begin(self, connection: SqlConnection, *, synced: bool, lock_seconds_max: float | None = None) -> None:
        # The limits of the session may be those of a pooler's other clients.
        lock_seconds_max = self._limits.lock_seconds_max if lock_seconds_max is None else lock_seconds_max
        connection.execute(
            f"BEGIN{'' if synced else '; SET LOCAL synchronous_commit = off'}"
            f"; SET LOCAL lock_timeout = {_milliseconds(lock_seconds_max)}"
            f"; SET LOCAL statement_timeout = {_milliseconds(self._limits.statement_seconds_max)}"
        )

    def limit_transaction(self) -> str:
        """Sets the limits for the transaction that has begun."""
        lock, statement = self._limits.lock_seconds_max, self._limits.statement_seconds_max
        return (
            f"; SELECT set_config('lock_timeout', '{_milliseconds(lock)}', true), "
            f"set_config('statement_timeout', '{_milliseconds(statement)}', true)"
        )

    def explain(self, error: Exception) -> StoreError:
        return (
            StoreError(str(error)) if isinstance(error, _UnreachableError) else explain_postgres_error(error, self.name)
        )


class _UnreachableError(psycopg.OperationalError):
    """No connection could be made; the message is ours."""


class EventNotifications:
    """Learns at once when any process appends events: LISTEN on a connection of its own, from a thread.

    Calls `on_events` after each connect too, and reconnects until it is closed. A notification has no content: it only
    says that there is something to read. What is missed while the connection is down is found by polling.
    """

    def __init__(self, address: PostgresAddress, on_events: Callable[[], None]) -> None:
        self._address = address
        self._on_events = on_events
        self._is_closed = threading.Event()
        self.is_connected = False
        """Without a connection, the feed has to poll."""
        threading.Thread(target=self._run, name="holdfast-notifications", daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                logger.info("no notifications of events: %s", type(error).__name__)
            except UserError as error:
                logger.warning("the live feed polls: %s", error)
                return
            finally:
                self.is_connected = False
            self._is_closed.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with connect_postgres(self._address, ConnectionLimits()) as connection:
            if is_pooled(connection):
                raise UserError(f"{self._address.name} is a pooler, which passes on no notification; use --db-direct")
            connection.execute(f"LISTEN {CHANNEL}")
            self.is_connected = True
            self._on_events()
            while not self._is_closed.is_set():
                for _ in connection.notifies(timeout=WAIT_SECONDS, stop_after=1):
                    self._on_events()
