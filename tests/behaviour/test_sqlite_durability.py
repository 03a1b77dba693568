"""What is left in the file when a program is killed, leaves without closing, or shares it with another."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from log_examples import said, talk

PROGRAM = Path(__file__).parents[1] / "append_events.py"

ENDLESS = 100_000


def start(path: Path, session: str, count: int, *, at_once: int = 1, ending: str = "close") -> "subprocess.Popen[str]":
    command = [sys.executable, str(PROGRAM), str(path), session, str(count), str(at_once), ending]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_killed_program_loses_no_event_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "log.db"
    moment = chance.randrange(100, 900)
    with start(path, "s", ENDLESS, at_once=chance.choice([1, 3])) as program:
        assert program.stdout
        acknowledged = [next(program.stdout) for _ in range(moment)]
        os.kill(program.pid, signal.SIGKILL)
        # What was still in the pipe was acknowledged too; a line that was cut off does not count.
        acknowledged += program.stdout.readlines()
    assert program.returncode == -signal.SIGKILL

    known = [line.removesuffix("\n") for line in acknowledged if line.endswith("\n")]
    with SqliteStore(path) as store:
        kept = list(store.read("s"))
        assert moment <= len(known) <= len(kept) < ENDLESS
        assert kept == talk(len(kept))
        assert known == [event.id for event in kept[: len(known)]]
        assert store.sessions()[0].event_count == len(kept)
        store.append([said(ENDLESS)]).result(10)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_program_that_leaves_without_closing_ends_and_has_written_what_it_appended(tmp_path: Path) -> None:
    with start(tmp_path / "log.db", "s", 2_000, ending="leave") as program:
        acknowledged, complaints = program.communicate(timeout=30)
    assert (program.returncode, complaints) == (0, "")
    assert acknowledged.split() == [event.id for event in talk(2_000)]
    with SqliteStore(tmp_path / "log.db") as store:
        assert list(store.read("s")) == talk(2_000)


def test_two_programs_make_and_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.db"
    programs = [start(path, session, 200) for session in ("first", "second")]
    with SqliteStore(path) as store:
        appends = [store.append([said(number, "third")]) for number in range(200)]
        complaints = [program.communicate(timeout=30)[1] for program in programs]
        for done in appends:
            done.result(10)
        assert complaints == ["", ""]
        for session in ("first", "second", "third"):
            assert list(store.read(session)) == talk(200, session)
        assert {row.event_count for row in store.sessions()} == {200}


def test_two_stores_on_one_file_see_each_other(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "log.db") as one, SqliteStore(tmp_path / "log.db") as other:
        one.append([said(0)]).result(10)
        other.append([said(1)]).result(10)
        one.append([said(2)]).result(10)
        assert list(one.read("s")) == list(other.read("s")) == talk(3)
