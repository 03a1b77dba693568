"""`holdfast db`: what a person sees of the store, and what bad input ends in."""

import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from tests.support.event_examples import call_events, event, message_event

from holdfast.cli.main import command
from holdfast.errors import HoldfastError
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.tools import ToolCompleted
from holdfast.stores.sqlite.store import SqliteStore

SECRET = "the launch code is 1234"
PAST = replace(message_event(1, "t", SECRET), at=4.0)


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        started = SessionStarted("anthropic:claude-sonnet-5-5", workspace_path="/home/ada", name="launch")
        store.append([event("first", started, at=1_800_000_000.0), *call_events(20)]).result(10)
        store.append([PAST, event("done", ToolCompleted("u", True, 1, 1), session="t", at=5.0)]).result(10)
    return str(path)


def run(*arguments: str, told: str | None = None) -> Result:
    return CliRunner().invoke(command, ["db", *arguments], input=told)


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, HoldfastError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def ran(*arguments: str, told: str | None = None) -> str:
    result = run(*arguments, told=told)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_tells_what_the_store_is_and_holds(db: str) -> None:
    told = ran("info", "--db", db)
    assert f"store     {db}\n" in told
    assert "sessions  2\nevents    23\ncalls     5\n" in told
    assert all(len(line) <= 80 for line in told.splitlines() if not line.startswith("store"))


def test_a_check_says_that_all_is_well_or_ends_with_one(db: str) -> None:
    assert "the roll-up tables match the events" in ran("info", "--db", db, "--check")
    change(db, "UPDATE days SET spent = spent + 1")
    result = run("info", "--db", db, "--check")
    assert result.exit_code == 1
    assert (
        "1 roll-up tables do not match the events; `holdfast db rebuild` recomputes them:\n          days"
        in result.output
    )
    assert json.loads(run("info", "--db", db, "--check", "--json").output)["differences"] == ["days"]


def change(db: str, statement: str) -> None:

    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(statement)


def test_a_rebuild_makes_the_tables_anew(db: str) -> None:
    change(db, "UPDATE days SET spent = spent + 1")
    assert ran("rebuild", "--db", db) == "2 sessions rolled up\n"
    ran("info", "--db", db, "--check")


def test_a_migration_enters_what_is_not_entered(db: str) -> None:
    change(db, "UPDATE sessions SET entered_events = 0 WHERE id = 's'")
    assert "and 1 session not rolled up yet" in ran("info", "--db", db)
    assert "1 session rolled up" in ran("migrate", "--db", db)
    assert "not rolled up" not in ran("info", "--db", db)


def test_pruning_says_what_goes_asks_and_leaves_what_was_paid(db: str) -> None:
    asked = ("prune", "--db", db, "--older-than", "2030-01-01")
    warning, would = ran(*asked, "--dry-run").splitlines()
    assert warning == "Costs and confirmations are kept; content and the verdicts on calls are removed."
    assert would.startswith("would remove 17 events of 2 sessions without an event since 2030-01-01")
    assert run(*asked, told="n\n").exit_code == 1
    assert "events    23" in ran("info", "--db", db)
    assert ran(*asked, told="y\n").endswith("removed 17 events of 2 sessions\n")
    left = ran("info", "--db", db, "--check")
    assert "sessions  1\nevents    6\ncalls     5\n" in left
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in Path(db).parent.glob("log.db*"))
    assert ran(*asked).startswith("nothing to remove")
    assert ran(*asked, "--audit-too", "--yes") == "removed 6 events of 1 session\n"
    assert "sessions  0" in ran("info", "--db", db)


def test_how_old_is_old_may_be_configured(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no age is given: pass --older-than 90d" in refusal("prune", "--db", db)
    monkeypatch.setenv("HOLDFAST_RETENTION_DAYS", "30")
    assert "would remove 2 events of 1 session " in ran("prune", "--db", db, "--dry-run")


def test_a_time_that_is_none_is_refused_by_its_option(db: str) -> None:
    assert "--older-than takes 7d" in refusal("prune", "--db", db, "--older-than", "soon")


def test_an_export_says_nothing_that_was_said_unless_asked(db: str, tmp_path: Path) -> None:
    told = ran("export", "--db", db)
    header, *events, end = map(json.loads, told.splitlines())
    assert (header["holdfast_export"], header["content"]) == (1, False)
    assert (end["sessions"], end["events"]) == (2, 23)
    assert len(events) == 23
    for secret in (SECRET, "/home/ada", "launch", "message 4"):
        assert secret not in told
    assert "0.0123" in told
    assert SECRET in ran("export", "--db", db, "--content")


def test_an_exported_file_is_its_owners_and_overwrites_nothing(db: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    ran("export", str(file), "--db", db, "--content")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "already exists" in refusal("export", str(file), "--db", db)


def test_one_session_or_the_newer_ones_are_exported_whole(db: str) -> None:
    assert ran("export", "--db", db, "--session", "t").count("\n") == 4
    assert ran("export", "--db", db, "--since", "2027-01-01").count("\n") == 23
    assert "there is no session 'none'" in refusal("export", "--db", db, "--session", "none")


def test_what_was_exported_is_imported_and_then_known(db: str, tmp_path: Path) -> None:
    file, other = str(tmp_path / "out.jsonl"), str(tmp_path / "other.db")
    ran("export", file, "--db", db, "--content")
    assert ran("import", file, "--db", other) == "2 sessions: 23 events added, 0 already stored\n"
    assert ran("import", file, "--db", other) == "2 sessions: 0 events added, 23 already stored\n"
    assert ran("export", "--content", "--db", other).splitlines()[1:] == Path(file).read_text().splitlines()[1:]
    ran("info", "--db", other, "--check")


def test_an_import_goes_on_where_a_session_stopped_and_refuses_one_that_went_another_way(
    db: str, tmp_path: Path
) -> None:
    file, other = str(tmp_path / "out.jsonl"), str(tmp_path / "other.db")
    ran("export", file, "--db", db, "--content")
    with SqliteStore(other) as store:
        store.append([PAST]).result(10)
    assert ran("import", file, "--db", other) == "2 sessions: 22 events added, 1 already stored\n"
    with SqliteStore(other) as store:
        store.delete("s")
        store.append([message_event(99)]).result(10)
    assert "line 4: session 's' has different events here" in refusal("import", file, "--db", other)


HEADER = '{"holdfast_export":1,"content":true,"exported_at":1}\n'
LATE = '{{"id":"e","at":{at},"session_id":"s","actor":"user","payload":{{"type":"session.started","model":"m"}}}}\n'
BAD = {
    "": "is not a Holdfast export",
    '{"content": true}\n': "is not a Holdfast export",
    '{"holdfast_export":2,"content":true,"exported_at":1}\n': "was exported by a newer Holdfast",
    '{"holdfast_export":1,"content":false,"exported_at":1}\n': "exported without content",
    HEADER: "ends too early",
    HEADER + "[" * 100_000: "line 2 is damaged",
    HEADER + LATE.format(at=1e15): "line 2: an event has an impossible time",
    HEADER + LATE.format(at=-1.0): "line 2: an event has an impossible time",
    HEADER + '{"end_of_export":true,"sessions":1,"events":1}\n': "line 2: the file has 0 events but declares 1",
}


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_is_no_export_or_not_all_of_one_is_refused(tmp_path: Path, text: str) -> None:
    file, other = tmp_path / "out.jsonl", tmp_path / "other.db"
    file.write_text(text)
    assert BAD[text] in refusal("import", str(file), "--db", str(other))
    if "export of" in BAD[text]:
        assert not other.exists()


def test_a_store_that_is_not_there_is_said_to_be_none() -> None:
    assert "there is no store yet" in refusal("info")


def test_a_workspace_may_not_say_how_long_things_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "config.toml").write_text("retention_days = 1\n")
    monkeypatch.chdir(tmp_path)
    assert "retention_days cannot be set by a workspace" in refusal("prune")
