"""Which files the SQLite store creates, which it accepts, and its errors for those it cannot use."""

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Timer
from time import monotonic

import pytest
from tests.support.event_examples import message_event, message_events

from holdfast.errors import HoldfastError, StoreError, UserError
from holdfast.stores.migrate import load_migrations
from holdfast.stores.sqlite.file import APPLICATION_ID, explain_sqlite_error, open_reader, open_writer, prepare_file
from holdfast.stores.sqlite.store import SqliteStore

NEWER = len(load_migrations("sqlite")) + 1
UNPRIVILEGED_USER = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_store(path: Path, count: int = 3) -> Path:
    with SqliteStore(path) as store:
        store.append(message_events(count)).result(10)
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_only_the_owner_may_read_files_that_the_store_creates(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "a" / "b" / "log.db"
    with SqliteStore(path) as store:
        store.append(message_events(1)).result(10)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["log.db", "log.db-shm", "log.db-wal"]
        assert [mode(file) for file in files] == [0o600] * 3
    assert [mode(folder) for folder in (path.parent, path.parent.parent, tmp_path)] == [0o700, 0o700, 0o755]


def test_a_closed_store_leaves_one_file(tmp_path: Path) -> None:
    write_store(tmp_path / "log.db")
    assert [file.name for file in tmp_path.iterdir()] == ["log.db"]


def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch(mode=0o640)
    path.chmod(0o640)
    write_store(path)
    assert mode(path) == 0o640


@pytest.mark.parametrize("name", ["what? #1 100%20.db", "file:log.db", "ü.db", "~"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    write_store(tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_relative_path_is_resolved_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteStore("log.db") as store:
        monkeypatch.chdir("/")
        store.append(message_events(1)).result(10)
        assert list(store.read("s")) == message_events(1)
        assert store.path == tmp_path / "log.db"


def test_writes_are_synchronised_and_journalled(tmp_path: Path) -> None:
    prepare_file(tmp_path / "log.db")
    with closing(open_writer(tmp_path / "log.db", load_migrations("sqlite"), busy_seconds_max=3.5)) as connection:
        names = ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "busy_timeout", "application_id")
        values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
        assert values == ["wal", 2, 1, 1, 3500, APPLICATION_ID]


def test_a_read_connection_cannot_write(tmp_path: Path) -> None:
    path = write_store(tmp_path / "log.db")
    with closing(open_reader(path, busy_seconds_max=2.5)) as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (2500,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM events")


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_without_a_file_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="needs a file; for a log that is not stored use MemoryStore"):
        SqliteStore(path)


def make_newer(path: Path) -> None:
    change(write_store(path), f"PRAGMA user_version = {NEWER}")


def make_foreign(path: Path) -> None:
    change(path, "CREATE TABLE recipes (name TEXT)")


def make_foreign_application_id(path: Path) -> None:
    change(path, "PRAGMA application_id = 42")


def make_text(path: Path) -> None:
    path.write_text("Dear diary, this is not a database.\n" * 100)


def make_damaged(path: Path) -> None:
    content = bytearray(write_store(path, 200).read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)
    path.write_bytes(content)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


UNUSABLE: dict[Callable[[Path], None], tuple[type[HoldfastError], str]] = {
    make_newer: (
        StoreError,
        f"was written by a newer Holdfast (schema version {NEWER}, this one knows {NEWER - 1}): upgrade holdfast",
    ),
    make_foreign: (StoreError, "is a database of another program: use another file"),
    make_foreign_application_id: (StoreError, "is a database of another program: use another file"),
    make_text: (StoreError, "is not a database: use another file"),
    make_damaged: (StoreError, "is damaged: restore it from a backup"),
    make_folder: (UserError, "is a folder, not a database: use a file in it, such as "),
    make_pipe: (UserError, "is not a regular file: use one"),
    make_loop: (StoreError, "cannot be opened (Too many levels of symbolic links): use another file"),
}


@pytest.mark.parametrize("make", UNUSABLE)
def test_an_unusable_file_is_refused_in_one_line_and_not_changed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "log.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    kind, reason = UNUSABLE[make]
    with pytest.raises(HoldfastError) as refusal:
        SqliteStore(path)
    assert type(refusal.value) is kind
    assert str(refusal.value).startswith(f"{path} {reason}")
    assert "\n" not in str(refusal.value)
    assert before == (path.read_bytes() if path.is_file() else None)
    assert [file.name for file in tmp_path.iterdir()] == ["log.db"]


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be opened \(Not a directory\)"):
        SqliteStore(tmp_path / "file" / "log.db")


def test_an_invalid_path_is_refused() -> None:
    with pytest.raises(UserError, match=r"is not a valid file name \(.*embedded null"):
        SqliteStore("log\0.db")


@contextmanager
def as_ordinary_user() -> Iterator[Path]:
    """A folder that an ordinary user may enter, with the rights of one, because root may do everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = os.geteuid() == 0
        if root:
            os.setresuid(UNPRIVILEGED_USER, UNPRIVILEGED_USER, 0)
        try:
            yield folder
        finally:
            if root:
                os.setresuid(0, 0, 0)
            folder.chmod(0o755)


REFUSED = "no permission to write .*log.db: check who owns the file and its folder"


def test_a_folder_without_write_permission_is_refused() -> None:
    with as_ordinary_user() as folder:
        if os.getuid() != UNPRIVILEGED_USER:
            folder.chmod(0o555)
        with pytest.raises(StoreError, match=REFUSED):
            SqliteStore(folder / "log.db")
        with pytest.raises(StoreError, match=REFUSED):
            SqliteStore(folder / "new" / "log.db")


@pytest.mark.parametrize("permissions", [0o444, 0o222])
def test_a_file_without_read_and_write_permission_is_refused(permissions: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = write_store(Path(name) / "log.db")
        path.chmod(permissions)
        path.parent.chmod(0o777)
        with as_ordinary_user(), pytest.raises(StoreError, match=REFUSED):
            SqliteStore(path)


@contextmanager
def hold_write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that writes and never finishes."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield connection


def test_a_new_file_that_another_program_has_locked_is_refused(tmp_path: Path) -> None:
    with hold_write_lock(tmp_path / "log.db"), pytest.raises(StoreError, match="is locked by another program: close"):
        SqliteStore(tmp_path / "log.db", busy_seconds_max=0.05)


def test_a_new_file_is_waited_for_while_another_program_creates_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    prepare_file(path)
    # A program that only reads blocks the switch to write-ahead logging, and SQLite does not wait by itself.
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE passing (name TEXT)")
        other.execute("DROP TABLE passing")
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        Timer(0.1, other.execute, ["COMMIT"]).start()
        with SqliteStore(path, busy_seconds_max=5) as store:
            store.append(message_events(1)).result(10)
            assert list(store.read("s")) == message_events(1)


def test_a_new_file_with_an_endless_reader_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    prepare_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE passing (name TEXT)")
        other.execute("DROP TABLE passing")
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        with pytest.raises(StoreError, match="is locked by another program"):
            SqliteStore(path, busy_seconds_max=0.05)


def test_a_new_file_with_an_endless_writer_is_refused_in_time(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    prepare_file(path)
    started = monotonic()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked by another program"):
            SqliteStore(path, busy_seconds_max=0.2)
    assert 0.1 < monotonic() - started < 5


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    with SqliteStore(tmp_path / "log.db") as store:
        store.append([message_event(1)]).result(10)
        assert list(store.read("s")) == [message_event(1)]


EXPLAINED = {
    sqlite3.SQLITE_FULL: "no space left to write FILE: free some on its disk, then open the store again",
    sqlite3.SQLITE_BUSY: "FILE is locked by another program: close that program, then open the store again",
    sqlite3.SQLITE_LOCKED: "FILE is locked by another program: close that program, then open the store again",
    sqlite3.SQLITE_READONLY: "no permission to write FILE: check who owns the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "FILE cannot be opened: check that it still exists, and who owns it and its folder",
    sqlite3.SQLITE_PERM: "no permission to write FILE: check who owns the file and its folder",
    sqlite3.SQLITE_NOTADB: "FILE is not a database: use another file",
    sqlite3.SQLITE_CORRUPT: "FILE is damaged: restore it from a backup",
    sqlite3.SQLITE_IOERR: "the disk failed under FILE: check the disk, then open the store again",
    sqlite3.SQLITE_IOERR | (3 << 8): "the disk failed under FILE: check the disk, then open the store again",
    sqlite3.SQLITE_NOLFS: "FILE cannot be used (SQLite error 22): restore it from a backup",
    None: "FILE is damaged: restore it from a backup",
}


@pytest.mark.parametrize("code", EXPLAINED)
def test_every_database_failure_is_reported_in_our_own_text(code: int | None) -> None:
    error = sqlite3.OperationalError("could not decode 'a secret'")
    if code is not None:
        error.sqlite_errorcode = code
    message = str(explain_sqlite_error(error, Path("FILE")))
    assert message.startswith(EXPLAINED[code])
    assert "secret" not in message
