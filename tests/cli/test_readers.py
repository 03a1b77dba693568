"""Commands that only read: they change no file, also beside a process that writes, and report damage in one line."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import click
import msgspec
import pytest
from tests.support.commands import run_in_process

from holdfast import Session, SimulatedProvider
from holdfast.cli.main import command
from holdfast.stores.migrate import load_migrations, migrate_sqlite
from holdfast.stores.spending_cache import FILE_NAME
from holdfast.stores.sqlite.store import SqliteStore

# Every command with --db (and audit, which takes the store as an argument); the words after the name are for the test.
READERS = (
    "audit --simulated {db}",
    "certify {session}",
    "compact --dry-run {session}",
    "db export",
    "db export --content --instructions",
    "db info --check",
    "db prune --dry-run --older-than 1d",
    "gateway changes {session}",
    "gateway costs {session}",
    "gateway spend",
    "history {session}",
    "instructions check {folder}",
    "instructions coverage",
    "instructions index",
    "instructions lint",
    "instructions metrics",
    "instructions probe",
    "instructions replay {token}",
    "instructions shadow",
    "instructions usage {token} --session {session}",
    "keys list",
    "knowledge harvest --dry-run --workspace {folder}",
    "knowledge review --list --workspace {folder}",
    "learned",
    "recovery list",
    "report --simulated",
    "sessions list",
    "sessions show {session}",
)
WRITERS = (
    "chat",
    "db import",
    "db migrate",
    "db rebuild",
    "instructions approve",
    "instructions archive",
    "instructions connect",
    "instructions encoder",
    "instructions hook",
    "instructions migrate",
    "instructions promote",
    "instructions publish",
    "instructions recall",
    "instructions rollback",
    "instructions withdraw",
    "keys create",
    "keys revoke",
    "keys set",
    "mcp",
    "recovery run",
    "serve",
    "sessions delete",
)
SETUP = ("instructions migrate AGENTS.md --out units", "instructions publish units", "keys create --scope admin")
RULES = """# Rules
## Releases
Before a release, run the whole test suite and update the changelog.
## Database
Migrations are forward only; never edit an applied migration. Ask before dropping a table.
"""


class Place(msgspec.Struct, frozen=True):
    """A folder with a store, and what the words of a command refer to."""

    folder: Path
    home: Path
    session: str
    token: str

    @property
    def db(self) -> Path:
        return self.folder / "log.db"

    def run(self, reader: str) -> subprocess.CompletedProcess[str]:
        names = {"db": self.db, "session": self.session, "token": self.token, "folder": self.home / "units"}
        words = reader.format(**names).split()
        database = () if words[0] == "audit" else ("--db", str(self.db))
        return run_in_process(*words, *database, cwd=self.home, HOLDFAST_HOME=str(self.home))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder, home = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("home")
    (home / "config.toml").write_text('[instructions]\nencoder = "none"\n')
    (home / "AGENTS.md").write_text(RULES)
    place = Place(folder, home, asyncio.run(have_conversation(folder / "log.db")), "")
    for words in (
        "instructions migrate AGENTS.md --out units",
        "instructions publish units",
        "keys create --scope admin",
    ):
        database = () if "migrate" in words else ("--db", str(place.db))
        assert run_in_process(*words.split(), *database, cwd=home, HOLDFAST_HOME=str(home)).returncode == 0
    recalled = run_in_process(
        *("instructions", "recall", "prepare a release", "--json", "--db", str(place.db)),
        cwd=home,
        HOLDFAST_HOME=str(home),
    )
    return msgspec.structs.replace(place, token=msgspec.json.decode(recalled.stdout)["audit_token"])


async def have_conversation(path: Path) -> str:
    with closing(SqliteStore(path)) as store:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5",
            system_prompt="Be brief. " * 300,
            store=store,
            transport=SimulatedProvider(),
            simulated=False,
        ) as session:
            for number in range(3):
                await session.send(f"What is {number} + {number}?")
            return session.id


@pytest.fixture
def place(template: Place, tmp_path: Path) -> Place:
    shutil.copytree(template.folder, tmp_path / "store")
    return msgspec.structs.replace(template, folder=tmp_path / "store")


def list_commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from list_commands(found, *names, name)
        elif found is not None:
            yield " ".join((*names, name)), found


def test_every_command_on_a_store_is_known_as_a_reader_or_a_writer() -> None:
    on_store = {name for name, found in list_commands(command) if any("--db" in part.opts for part in found.params)}
    readers = {name for name in on_store if any(f"{reader} ".startswith(f"{name} ") for reader in READERS)}
    assert on_store - readers == set(WRITERS)


opened_files: list[tuple[str, tuple[object, ...]]] | None = None


def _record_opened_file(event: str, arguments: tuple[object, ...]) -> None:
    if opened_files is not None and event in ("open", "sqlite3.connect"):
        opened_files.append((event, arguments))


sys.addaudithook(_record_opened_file)


@contextmanager
def watch_opened_files() -> Iterator[list[tuple[str, tuple[object, ...]]]]:
    global opened_files
    opened_files = []
    try:
        yield opened_files
    finally:
        opened_files = None


def is_opened_to_write(event: str, arguments: tuple[object, ...], folders: tuple[Path, ...]) -> bool:
    name = arguments[0]
    if event == "sqlite3.connect":
        return name not in (":memory:", "") and "mode=ro" not in str(name)
    inside = isinstance(name, str) and any(Path(name).is_relative_to(folder) for folder in folders)
    flags = arguments[2]
    return inside and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def snapshot(*folders: Path) -> dict[Path, tuple[bytes, int, int]]:
    """Bytes of every file, with the time and inode that even the same bytes written again would change."""
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    return {
        path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_ino)
        for path in paths
    }


@contextmanager
def no_writer(path: Path) -> Iterator[None]:
    yield


@contextmanager
def another_process(path: Path) -> Iterator[None]:
    """It writes an event and keeps the store open."""
    code = (
        "import sys; from tests.support.event_examples import message_event\n"
        "from holdfast.stores.sqlite.store import SqliteStore\n"
        "store = SqliteStore(sys.argv[1]); store.append([message_event(1)]).result(10)\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert Path(f"{path}-wal").stat().st_size
        yield
        process.communicate("\n")


@contextmanager
def killed_process(path: Path) -> Iterator[None]:
    """It wrote an event, and left it in the log beside the database, with the log's index."""
    with another_process(path):
        left = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")}
    for suffix, raw in left.items():
        Path(f"{path}{suffix}").write_bytes(raw)
    yield


@contextmanager
def lost_index(path: Path) -> Iterator[None]:
    with killed_process(path):
        Path(f"{path}-shm").unlink()
        yield


@pytest.mark.parametrize("writer", [no_writer, another_process])
def test_readers_change_no_file_and_open_none_for_writing(
    writer: Callable[[Path], AbstractContextManager[None]], place: Place
) -> None:
    folders = (place.folder, place.home)
    with writer(place.db):
        for reader in ("report --simulated", "audit --simulated {db}"):
            # The first of them keeps what the sessions spent, in the home folder.
            place.run(reader)
        before = snapshot(*folders)
        assert {path.name for path in before} >= {"log.db", FILE_NAME}
        for reader in READERS:
            with watch_opened_files() as opened:
                done = place.run(reader)
            # Some commands report what they found as their status, and no session here went through the gateway.
            assert done.stdout or "did not go through the gateway" in done.stderr, (reader, done.stderr)
            assert [entry for entry in opened if is_opened_to_write(*entry, folders)] == [], reader
            assert snapshot(*folders) == before, reader


def test_readers_do_not_create_a_store_that_is_missing(tmp_path: Path, template: Place) -> None:
    place = msgspec.structs.replace(template, folder=tmp_path)
    for reader in READERS:
        if reader.startswith("instructions check"):
            continue  # It checks a folder before anything was published.
        done = place.run(reader)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), (reader, done)
        assert list(tmp_path.iterdir()) == [], reader


def test_a_reader_of_an_older_file_says_so_and_reads_it(tmp_path: Path, template: Place) -> None:
    place = msgspec.structs.replace(template, folder=tmp_path)
    *older, _ = load_migrations("sqlite")
    with closing(sqlite3.connect(place.db, isolation_level=None)) as connection:
        migrate_sqlite(connection, older)
        connection.execute(
            "INSERT INTO sessions (id, model, started_at, last_event_at, event_count) VALUES ('old', 'm', 1, 2, 0)"
        )
    done = place.run("sessions list")
    assert "old" in done.stdout
    version = len(older)
    assert done.stderr == (
        f"holdfast: {place.db} has schema version {version}, this Holdfast reads {version + 1}: "
        f"read from a migrated copy; `holdfast db migrate --db {place.db}` migrates the file\n"
    )


def cut_short(raw: bytearray) -> None:
    del raw[len(raw) // 2 :]


def change_header(raw: bytearray) -> None:
    raw[16:100] = random.Random(1).randbytes(84)


def change_middle(raw: bytearray) -> None:
    chance = random.Random(2)
    for _ in range(2_000):
        raw[chance.randrange(100, len(raw))] = chance.randrange(256)


def change_text(raw: bytearray) -> None:
    """Text in every table is not Unicode, while all pages are whole."""
    raw[:] = (
        raw.replace(b"anthropic", b"anth\xff\xfepic").replace(b"active", b"act\xffve").replace(b"admin", b"ad\xffin")
    )


def change_names(raw: bytearray) -> None:
    """SQLite quotes the name in its message, which Python cannot decode."""
    raw[:] = raw.replace(b"tableevents", b"table\xffvents").replace(b"CREATE TABLE events", b"CREATE TABLX events")


def replace_all(raw: bytearray) -> None:
    raw[:] = b"Not a database. " * 1_000


def empty(raw: bytearray) -> None:
    raw.clear()


DAMAGES: tuple[Callable[[bytearray], None], ...] = (
    cut_short,
    change_header,
    change_middle,
    change_text,
    change_names,
    replace_all,
    empty,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_readers_of_a_damaged_file_say_so_in_one_line(damage: Callable[[bytearray], None], place: Place) -> None:
    raw = bytearray(place.db.read_bytes())
    damage(raw)
    place.db.write_bytes(raw)
    before, refused = snapshot(place.folder), set()
    for reader in READERS:
        done = place.run(reader)
        if done.stderr:
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), (reader, done.stderr)
            assert done.stderr.startswith("holdfast: "), (reader, done.stderr)
            refused.add(reader)
        assert done.stdout or done.stderr, reader
        assert snapshot(place.folder) == before, reader
    assert refused


CHANGES = (
    *("compact {session}", "db migrate", "db prune --older-than 1d --yes", "db rebuild", "instructions approve x"),
    *("instructions encoder", "instructions publish units", "instructions recall release", "instructions rollback v1"),
    *("keys create --scope admin", "keys revoke x", "sessions delete {session} --yes"),
)
"""Commands that change a store, as a user would type them."""


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_writers_of_a_damaged_file_say_so_in_one_line(damage: Callable[[bytearray], None], place: Place) -> None:
    raw = bytearray(place.db.read_bytes())
    damage(raw)
    for change in CHANGES:
        for file in place.folder.iterdir():
            file.unlink()
        place.db.write_bytes(raw)
        done = place.run(change)
        if done.returncode:
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), (change, done.stderr)
            assert done.stderr.startswith("holdfast: "), (change, done.stderr)
        elif damage in (cut_short, change_header, replace_all):
            raise AssertionError(f"{change} changed a file that is no store: {done.stdout}")


READ_ONLY_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && ! touch "$0/x" 2>/dev/null && exec "$@"'


@pytest.mark.parametrize(
    ("writer", "sessions"), [(no_writer, 1), (another_process, 2), (killed_process, 2), (lost_index, 2)]
)
def test_a_store_on_read_only_media_is_listed_and_not_changed(
    writer: Callable[[Path], AbstractContextManager[None]], sessions: int, place: Place
) -> None:
    mounted = ("unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY_MOUNT, str(place.folder))
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], check=False).returncode:
        pytest.skip("this system lets a test mount nothing")
    with writer(place.db):
        before = snapshot(place.folder)
        for words, code, shown in (
            (("sessions", "list"), 0, place.session),
            (("db", "info", "--check"), 0, f"sessions  {sessions}"),
            (("keys", "create", "--scope", "admin"), 1, "no permission to write"),
        ):
            done = subprocess.run(
                [*mounted, sys.executable, "-m", "holdfast", *words, "--db", str(place.db)],
                env={**os.environ, "HOLDFAST_HOME": str(place.home)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr.count("\n")) == (code, code), done.stderr
            assert shown in done.stdout + done.stderr
        assert snapshot(place.folder) == before


CELLS: Mapping[str, tuple[str, str]] = {
    "sessions.started_at": ("db info", "the list of sessions is damaged"),
    "sessions.event_count": ("sessions list", "a number in the database is damaged: restore"),
    "events.payload": ("certify {session}", "is damaged: restore"),
    "events.at": ("history {session}", "is damaged: restore"),
    "outcome_days.latency_bits": ("report --simulated", "the roll-up tables are damaged: `holdfast db rebuild`"),
    "outcome_days.calls": ("report --simulated", "the roll-up tables are damaged: `holdfast db rebuild`"),
    "api_keys.scope": ("keys list", "the list of keys is damaged"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_damaged_cell_is_reported_in_one_line(cell: str, place: Place) -> None:
    reader, reason = CELLS[cell]
    table, _, column = cell.partition(".")
    with closing(sqlite3.connect(place.db, isolation_level=None)) as connection:
        connection.execute(f"UPDATE OR REPLACE {table} SET {column} = x'ff00'")
    done = place.run(reader)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert reason in done.stderr
