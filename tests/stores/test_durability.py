"""The content of a database after a program was killed, exited without closing, or shared it with another."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.event_examples import EVENTS_A_CALL, call_event, message_event, message_events

from holdfast.catalog.lookup import shipped_models
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.maintenance import find_differences
from holdfast.stores.open import open_store

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.support.append_events"

ENDLESS = 100_000


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that exists or will be created."""
    if request.param == "sqlite":
        return str(tmp_path / "new" / "log.db")
    url: str = request.getfixturevalue("postgres")
    return url


def start(
    address: str, session: str, count: int, *, at_once: int = 1, ending: str = "close"
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", PROGRAM, address, session, str(count), str(at_once), ending]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_killed_program_loses_no_acknowledged_event(address: str, seed: int) -> None:
    chance = random.Random(seed)
    moment = chance.randrange(100, 900)
    with start(address, "s", ENDLESS, at_once=chance.choice([1, 3])) as program:
        assert program.stdout
        acknowledged = [next(program.stdout) for _ in range(moment)]
        os.kill(program.pid, signal.SIGKILL)
        # Lines still in the pipe were acknowledged too; an incomplete line does not count.
        acknowledged += program.stdout.readlines()
    assert program.returncode == -signal.SIGKILL

    acknowledged_ids = [line.removesuffix("\n") for line in acknowledged if line.endswith("\n")]
    with closing(open_store(address)) as store:
        # A server may still be running the last transaction of the killed program; an append waits for it.
        store.append([message_event(ENDLESS)]).result(10)
        *earlier, newest = store.read("s")
        assert newest == message_event(ENDLESS)
        assert moment <= len(acknowledged_ids) <= len(earlier) < ENDLESS
        assert earlier == message_events(len(earlier))
        assert acknowledged_ids == [event.id for event in earlier[: len(acknowledged_ids)]]
        assert store.sessions()[0].event_count == len(earlier) + 1
    if "://" not in address:
        with closing(sqlite3.connect(address)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("seed", [5, 6])
def test_the_tables_of_a_killed_program_match_its_events(address: str, seed: int) -> None:
    chance = random.Random(seed)
    moment = chance.randrange(50, 400)
    with start(address, "calls", ENDLESS, at_once=chance.choice([1, 7])) as program:
        assert program.stdout
        acknowledged = [next(program.stdout) for _ in range(moment)]
        os.kill(program.pid, signal.SIGKILL)
    with closing(open_store(address)) as store:
        assert isinstance(store, DatabaseEventLog)
        # As above, an append waits for any transaction in progress.
        store.append([message_event(ENDLESS, "calls")]).result(10)
        assert store.read_facts().calls >= len(acknowledged) // EVENTS_A_CALL
        assert store.read_facts().pending_sessions == 0
        assert list(find_differences(store, shipped_models())) == []


def test_a_program_that_exits_without_closing_has_written_its_appends(address: str) -> None:
    with start(address, "s", 2_000, ending="leave") as program:
        acknowledged, complaints = program.communicate(timeout=30)
    assert (program.returncode, complaints) == (0, "")
    assert acknowledged.split() == [event.id for event in message_events(2_000)]
    with closing(open_store(address)) as store:
        assert list(store.read("s")) == message_events(2_000)


def test_two_programs_create_and_write_one_database_concurrently(address: str) -> None:
    programs = [start(address, session, 200) for session in ("first", "second")]
    with closing(open_store(address)) as store:
        appends = [store.append([message_event(number, "third")]) for number in range(200)]
        complaints = [program.communicate(timeout=30)[1] for program in programs]
        for done in appends:
            done.result(10)
        assert complaints == ["", ""]
        for session in ("first", "second", "third"):
            assert list(store.read(session)) == message_events(200, session)
        assert {row.event_count for row in store.sessions()} == {200}


def test_programs_that_record_calls_of_one_day_concurrently_lose_nothing(address: str) -> None:
    programs = [start(address, session, 120, at_once=3) for session in ("calls 1", "calls 2")]
    with closing(open_store(address)) as store:
        assert isinstance(store, DatabaseEventLog)
        appends = [store.append([call_event(number, "calls 3")]) for number in range(120)]
        complaints = [program.communicate(timeout=30)[1] for program in programs]
        for done in appends:
            done.result(10)
        assert complaints == ["", ""]
        assert store.cost_queries().totals().calls == 90
        assert list(find_differences(store, shipped_models())) == []


def test_two_stores_on_one_database_see_each_other(address: str) -> None:
    with closing(open_store(address)) as first, closing(open_store(address)) as other:
        first.append([message_event(0)]).result(10)
        other.append([message_event(1)]).result(10)
        first.append([message_event(2)]).result(10)
        assert list(first.read("s")) == list(other.read("s")) == message_events(3)
