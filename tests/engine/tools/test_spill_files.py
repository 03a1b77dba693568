"""Outputs that were too long to be sent are kept in files, and not for ever."""

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
def place(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def keep(place: Path, session: str, *, days: float, size: int = 10, now: float = NOW) -> Path:
    """Outputs of a session that was used so many days ago."""
    folder = place / session
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "0123456789abcdef-1.txt"
    file.write_bytes(b"x" * size)
    for one in (file, folder):
        os.utime(one, (now - days * DAY_SECONDS,) * 2)
    return folder


def test_what_nobody_used_for_a_month_goes(place: Path) -> None:
    old, young = keep(place, "old", days=31), keep(place, "young", days=29)
    assert delete_old_outputs(place, now=NOW) == (old,)
    assert (old.exists(), (young / "0123456789abcdef-1.txt").exists()) == (False, True)


def test_an_output_that_was_added_later_keeps_the_others(place: Path) -> None:
    folder = keep(place, "old", days=31)
    os.utime(folder / "0123456789abcdef-1.txt", (NOW, NOW))
    assert delete_old_outputs(place, now=NOW) == ()


def test_of_too_much_the_oldest_goes_but_nothing_that_was_used_this_week(place: Path) -> None:
    folders = [keep(place, f"s{days}", days=days, size=100) for days in (20, 15, 10, 6, 1)]
    assert delete_old_outputs(place, now=NOW, bytes_max=500) == ()
    assert delete_old_outputs(place, now=NOW, bytes_max=400) == (folders[0],)
    assert delete_old_outputs(place, now=NOW, bytes_max=0) == (folders[1], folders[2])
    assert all(folder.exists() for folder in folders[3:])


def test_only_files_of_ours_are_deleted(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    (place / "link").symlink_to(other)
    (place / "stray.txt").write_text("stray")
    folder = keep(place, "old", days=31)
    (folder / "note.md").write_text("a note")
    (folder / "linked.txt").symlink_to(other / "mine.txt")
    for one in (folder, place / "stray.txt"):
        os.utime(one, (0, 0))
    delete_old_outputs(place, now=NOW * 2)
    assert sorted(one.name for one in folder.iterdir()) == ["linked.txt", "note.md"]
    assert (other / "mine.txt").read_text() == "mine"
    assert (place / "stray.txt").exists()


def test_a_missing_place_holds_nothing(tmp_path: Path) -> None:
    assert delete_old_outputs(tmp_path / "none", now=NOW) == ()
    assert find_outputs(tmp_path, "none") is None


@pytest.mark.parametrize("id", ["", ".", "..", "../other", "a/b", "/"])
def test_no_id_leads_out_of_the_place(place: Path, id: str) -> None:
    (keep(place.parent, "other", days=1) / "0123456789abcdef-1.txt").rename(place / "stray.txt")
    keep(place / "a", "b", days=1)
    assert find_outputs(place, id) is None
    assert find_outputs(place, "a") is not None


async def test_a_session_that_is_resumed_keeps_its_outputs_and_lets_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tools, "_cleaned_at", {})
    place = tmp_path / "home" / "outputs"
    options: Options = {
        "store": MemoryStore(),
        "transport": ReplayTransport([says("ok")]),
        "workspace": tmp_path,
        "builtin_tools": ["read_file"],
    }
    old = keep(place, "old", days=31, now=time.time())
    async with Session.create(**options) as session:
        await session.send("hello")
    assert not old.exists()
    own = keep(place, session.id, days=40, now=time.time())
    old = keep(place, "old", days=31, now=time.time())
    async with Session.resume(session.id, **options):
        # A process looks for old ones once an hour.
        assert old.exists()
    monkeypatch.setattr(tools, "_cleaned_at", {})
    async with Session.resume(session.id, **options):
        assert (own.exists(), old.exists()) == (True, False)


def test_a_session_that_is_deleted_takes_its_outputs_along(tmp_path: Path) -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    run = CliRunner().invoke
    run(command, ["chat", str(tmp_path), "--simulate", "--yes"], input="run seq 20000\n", catch_exceptions=False)
    (folder,) = (home / "outputs").iterdir()
    assert len(list(folder.iterdir())) == 1
    said = run(command, ["sessions", "delete", folder.name, "--dry-run"], catch_exceptions=False).output
    assert said.endswith("events and 1 long output stored in files\n")
    assert folder.exists()
    said = run(command, ["sessions", "delete", folder.name, "--yes"], catch_exceptions=False).output
    assert said.startswith(f"deleted session {folder.name} with ")
    assert not folder.exists()
