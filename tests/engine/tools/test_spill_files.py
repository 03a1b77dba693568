"""Long tool outputs are stored in files, and deleted after a while."""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.agents import ReplayTransport, says

from holdfast import Session
from holdfast.cli.main import command
from holdfast.engine.tools.output import DAY_SECONDS, delete_old_outputs, find_outputs
from holdfast.runtime import tools
from holdfast.runtime.options import Options
from holdfast.stores.memory import MemoryStore

NOW = 1_900_000_000.0


@pytest.fixture
def output_root(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def store_output(output_root: Path, session: str, *, days: float, size: int = 10, now: float = NOW) -> Path:
    """An output of a session that was last used this many days ago."""
    folder = output_root / session
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "0123456789abcdef-1.txt"
    file.write_bytes(b"x" * size)
    for path in (file, folder):
        os.utime(path, (now - days * DAY_SECONDS,) * 2)
    return folder


def test_outputs_unused_for_a_month_are_deleted(output_root: Path) -> None:
    old, young = store_output(output_root, "old", days=31), store_output(output_root, "young", days=29)
    assert delete_old_outputs(output_root, now=NOW) == (old,)
    assert (old.exists(), (young / "0123456789abcdef-1.txt").exists()) == (False, True)


def test_a_newer_output_keeps_the_older_ones_of_its_session(output_root: Path) -> None:
    folder = store_output(output_root, "old", days=31)
    os.utime(folder / "0123456789abcdef-1.txt", (NOW, NOW))
    assert delete_old_outputs(output_root, now=NOW) == ()


def test_over_the_size_limit_the_oldest_outputs_go_but_none_of_this_week(output_root: Path) -> None:
    folders = [store_output(output_root, f"s{days}", days=days, size=100) for days in (20, 15, 10, 6, 1)]
    assert delete_old_outputs(output_root, now=NOW, bytes_max=500) == ()
    assert delete_old_outputs(output_root, now=NOW, bytes_max=400) == (folders[0],)
    assert delete_old_outputs(output_root, now=NOW, bytes_max=0) == (folders[1], folders[2])
    assert all(folder.exists() for folder in folders[3:])


def test_only_files_written_by_us_are_deleted(output_root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    (output_root / "link").symlink_to(other)
    (output_root / "stray.txt").write_text("stray")
    folder = store_output(output_root, "old", days=31)
    (folder / "note.md").write_text("a note")
    (folder / "linked.txt").symlink_to(other / "mine.txt")
    for path in (folder, output_root / "stray.txt"):
        os.utime(path, (0, 0))
    delete_old_outputs(output_root, now=NOW * 2)
    assert sorted(path.name for path in folder.iterdir()) == ["linked.txt", "note.md"]
    assert (other / "mine.txt").read_text() == "mine"
    assert (output_root / "stray.txt").exists()


def test_a_missing_folder_holds_no_outputs(tmp_path: Path) -> None:
    assert delete_old_outputs(tmp_path / "none", now=NOW) == ()
    assert find_outputs(tmp_path, "none") is None


@pytest.mark.parametrize("id", ["", ".", "..", "../other", "a/b", "/"])
def test_no_session_id_leads_out_of_the_folder(output_root: Path, id: str) -> None:
    (store_output(output_root.parent, "other", days=1) / "0123456789abcdef-1.txt").rename(output_root / "stray.txt")
    store_output(output_root / "a", "b", days=1)
    assert find_outputs(output_root, id) is None
    assert find_outputs(output_root, "a") is not None


async def test_a_resumed_session_keeps_its_outputs_and_deletes_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tools, "_cleaned_at", {})
    output_root = tmp_path / "home" / "outputs"
    options: Options = {
        "store": MemoryStore(),
        "transport": ReplayTransport([says("ok")]),
        "workspace": tmp_path,
        "builtin_tools": ["read_file"],
    }
    old = store_output(output_root, "old", days=31, now=time.time())
    async with Session.create(**options) as session:
        await session.send("hello")
    assert not old.exists()
    own = store_output(output_root, session.id, days=40, now=time.time())
    old = store_output(output_root, "old", days=31, now=time.time())
    async with Session.resume(session.id, **options):
        # A process looks for old outputs once an hour.
        assert old.exists()
    monkeypatch.setattr(tools, "_cleaned_at", {})
    async with Session.resume(session.id, **options):
        assert (own.exists(), old.exists()) == (True, False)


def test_deleting_a_session_deletes_its_outputs(tmp_path: Path) -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    run = CliRunner().invoke
    run(command, ["chat", str(tmp_path), "--simulate", "--yes"], input="run seq 20000\n", catch_exceptions=False)
    (folder,) = (home / "outputs").iterdir()
    assert len(list(folder.iterdir())) == 1
    output = run(command, ["sessions", "delete", folder.name, "--dry-run"], catch_exceptions=False).output
    assert output.endswith("events and 1 long output stored in files\n")
    assert folder.exists()
    output = run(command, ["sessions", "delete", folder.name, "--yes"], catch_exceptions=False).output
    assert output.startswith(f"deleted session {folder.name} with ")
    assert not folder.exists()
