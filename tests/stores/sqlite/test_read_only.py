"""A store that is open for reading only reads everything and changes no file, whatever state the file is in."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.support.event_examples import call_events, message_event, message_events, session_started_event

from holdfast.errors import StoreError, UserError
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.migrate import load_migrations, migrate_sqlite
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore

CURRENT = len(load_migrations("sqlite"))

# Appends one event, prints a line, and waits for the end of its input or to be killed.
WRITER = """
import sys
from tests.support.event_examples import message_event
from holdfast.stores.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
store.append([message_event(90, "late")]).result(10)
print("written", flush=True)
sys.stdin.read()
store.close()
"""


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file with its bytes, and the time and inode that even the same bytes written again would change."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*")
    } | {".": (b"", folder.stat().st_mtime_ns, folder.stat().st_ino)}


def contents(store: DatabaseEventLog) -> object:
    """What a reader sees: sessions, events, figures of both kinds, keys."""
    rows = store.sessions()
    events = [list(store.read(row.id)) for row in rows]
    costs = store.cost_queries()
    return (
        rows,
        events,
        costs.totals(),
        costs.session_amounts(),
        store.analytics_queries().groups("session"),
        store.records.all_keys(),
    )


@contextmanager
def writer_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the store open, with events in its write-ahead log."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        yield process
        process.communicate("\n")


def at_rest(path: Path) -> None:
    """As the last process left it."""


def killed_writer(path: Path) -> None:
    with writer_process(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Path(f"{path}-wal").stat().st_size
    assert Path(f"{path}-shm").exists()


def log_without_index(path: Path) -> None:
    """As in a backup that has the log but not the index of it."""
    killed_writer(path)
    Path(f"{path}-shm").unlink()


def empty_log(path: Path) -> None:
    Path(f"{path}-wal").touch()


def run_sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def pending_session(path: Path) -> None:
    run_sql(path, "UPDATE sessions SET entered_events = 0 WHERE id = 's'")


def other_ledger(path: Path) -> None:
    run_sql(path, "UPDATE ledger SET version = 0")


def no_write_ahead_log(path: Path) -> None:
    """As `VACUUM INTO` writes it."""
    run_sql(path, "PRAGMA journal_mode = DELETE")


def hot_journal(path: Path) -> None:
    """A process without a write-ahead log was killed in the middle of a transaction that had reached the file."""
    no_write_ahead_log(path)
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN IMMEDIATE'); c.execute('DELETE FROM events'); "
        "c.execute('DELETE FROM sessions'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert Path(f"{path}-journal").stat().st_size


STATES: tuple[Callable[[Path], None], ...] = (
    at_rest,
    killed_writer,
    log_without_index,
    empty_log,
    pending_session,
    other_ledger,
    no_write_ahead_log,
    hot_journal,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "log.db"
    with SqliteStore(path) as store:
        store.append([session_started_event(name="first"), *message_events(300)]).result(10)
        store.append(call_events(40, "t")).result(10)
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "stores"
    folder.mkdir()
    shutil.copy(template, folder / "log.db")
    return folder / "log.db"


@pytest.mark.parametrize("prepare", STATES, ids=lambda prepare: prepare.__name__)
def test_a_reader_sees_what_a_writer_sees_and_changes_no_file(
    prepare: Callable[[Path], None], path: Path, tmp_path: Path
) -> None:
    prepare(path)
    before, threads = snapshot(path.parent), threading.active_count()
    with open_store(path, read_only=True) as store:
        seen = contents(store)
        assert threading.active_count() == threads
    assert snapshot(path.parent) == before
    copied = tmp_path / "copied"
    shutil.copytree(path.parent, copied)
    with open_store(copied / "log.db") as store:
        assert contents(store) == seen


def test_a_reader_follows_a_process_that_writes_and_changes_none_of_its_files(path: Path) -> None:
    with writer_process(path):
        before = snapshot(path.parent)
        with open_store(path, read_only=True) as store:
            assert list(store.read("late")) == [message_event(90, "late")]
            assert store.cost_queries().totals().calls == 10
        assert snapshot(path.parent) == before


def test_a_reader_notices_a_process_that_begins_to_write(path: Path) -> None:
    with open_store(path, read_only=True) as store:
        assert list(store.read("late")) == []
        with writer_process(path):
            assert list(store.read("late")) == [message_event(90, "late")]


def test_a_reader_notices_a_process_that_wrote_and_ended(path: Path) -> None:
    with open_store(path, read_only=True) as store:
        assert list(store.read("late")) == []
        with writer_process(path):
            pass
        assert not Path(f"{path}-wal").exists()
        assert list(store.read("late")) == [message_event(90, "late")]


@pytest.mark.parametrize("version", range(1, CURRENT))
def test_an_older_file_is_read_from_a_migrated_copy_and_the_reader_says_so(version: int, tmp_path: Path) -> None:
    path = tmp_path / "old" / "log.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate_sqlite(connection, load_migrations("sqlite")[:version])
        connection.execute(
            "INSERT INTO sessions (id, model, started_at, last_event_at, event_count) VALUES ('s', 'm', 1, 2, 0)"
        )
    before = snapshot(path.parent)
    with open_store(path, read_only=True) as store:
        assert [row.id for row in store.sessions()] == ["s"]
        assert store.cost_queries().totals().calls == 0
        assert store.notice == (
            f"{path} has schema version {version}, this Holdfast reads {CURRENT}: "
            f"read from a migrated copy; `holdfast db migrate --db {path}` migrates the file"
        )
    assert snapshot(path.parent) == before


def test_a_newer_file_is_refused(path: Path) -> None:
    run_sql(path, f"PRAGMA user_version = {CURRENT + 1}")
    with pytest.raises(StoreError, match=f"newer Holdfast .schema version {CURRENT + 1}, this one knows {CURRENT}"):
        open_store(path, read_only=True)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_version_below_zero_is_damage(path: Path, read_only: bool) -> None:
    run_sql(path, "PRAGMA user_version = -5")
    with pytest.raises(StoreError, match="is damaged: restore it from a backup"):
        open_store(path, read_only=read_only)


def test_a_missing_file_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no store at .*none\.db'; check the path"):
        open_store(tmp_path / "none.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_holds_no_store(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    with pytest.raises(StoreError, match="holds no store: check the path"):
        open_store(tmp_path / "log.db", read_only=True)
    assert (tmp_path / "log.db").stat().st_size == 0


def test_a_reader_refuses_every_change(path: Path) -> None:
    with open_store(path, read_only=True) as store:
        refusal = f"the store {path} is open for reading only: open it for writing to change it"
        assert str(store.append(message_events(1, "u")).exception(10)) == refusal
        changes: tuple[Callable[[], object], ...] = (
            lambda: store.delete("s"),
            lambda: store.prune("s", ("",), before=1e300),
            store.clear_tables,
            lambda: store.records.invalidate("s", at=1.0),
        )
        for change in changes:
            with pytest.raises(StoreError, match="open for reading only"):
                change()


def test_a_reader_needs_no_permission_to_write(path: Path) -> None:
    """In a process of a user who may read the folder and change nothing in it."""
    shutil.copytree(path.parent, shared := Path(f"/tmp/holdfast-{os.getpid()}-{os.urandom(4).hex()}"))
    try:
        killed_writer(shared / "killed.db")
        for file in shared.iterdir():
            file.chmod(0o444)
        shared.chmod(0o555)
        child = os.fork()
        if child == 0:
            _exit_as_reader(shared)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        shared.chmod(0o755)
        shutil.rmtree(shared)


def _exit_as_reader(shared: Path) -> None:
    status = 1
    try:
        if os.getuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        with (
            open_store(shared / "log.db", read_only=True) as store,
            open_store(shared / "killed.db", read_only=True) as killed,
        ):
            done = (len(store.sessions()), len(killed.sessions()), store.cost_queries().totals().calls)
        try:
            (shared / "new").touch()
        except PermissionError:
            status = int(done != (2, 1, 10))
    finally:
        os._exit(status)


def test_a_name_that_is_not_unicode_is_damage(path: Path) -> None:
    """SQLite quotes it in its message, which Python then cannot decode."""
    raw = path.read_bytes().replace(b"tableevents", b"table\xffvents")
    path.write_bytes(raw.replace(b"CREATE TABLE events", b"CREATE TABLX events"))
    for read_only in (True, False):
        with pytest.raises(StoreError, match="is damaged: restore it from a backup"):
            open_store(path, read_only=read_only)
