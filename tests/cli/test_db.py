"""`holdfast db`: what a user sees of the store, and the errors for invalid input."""

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
from holdfast.events.payloads.calls import ToolCompleted
from holdfast.events.payloads.session import SessionStarted
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


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(command, ["db", *arguments], input=input)


def refusal_message(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, HoldfastError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def run_ok(*arguments: str, input: str | None = None) -> str:
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_describes_the_store_and_its_content(db: str) -> None:
    output = run_ok("info", "--db", db)
    assert f"store     {db}\n" in output
    assert "sessions  2\nevents    23\ncalls     5\n" in output
    assert all(len(line) <= 80 for line in output.splitlines() if not line.startswith("store"))


def test_a_check_reports_success_or_ends_with_1(db: str) -> None:
    assert "the roll-up tables match the events" in run_ok("info", "--db", db, "--check")
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


def test_a_rebuild_recreates_the_tables(db: str) -> None:
    change(db, "UPDATE days SET spent = spent + 1")
    assert run_ok("rebuild", "--db", db) == "2 sessions rolled up\n"
    run_ok("info", "--db", db, "--check")


def test_a_migration_records_events_that_are_not_recorded(db: str) -> None:
    change(db, "UPDATE sessions SET entered_events = 0 WHERE id = 's'")
    assert "and 1 session not rolled up yet" in run_ok("info", "--db", db)
    assert "1 session rolled up" in run_ok("migrate", "--db", db)
    assert "not rolled up" not in run_ok("info", "--db", db)


def test_pruning_lists_what_will_be_deleted_asks_and_keeps_the_costs(db: str) -> None:
    prune = ("prune", "--db", db, "--older-than", "2030-01-01")
    warning, would = run_ok(*prune, "--dry-run").splitlines()
    assert warning == "Costs and confirmations are kept; content and the verdicts on calls are removed."
    assert would.startswith("would remove 17 events of 2 sessions without an event since 2030-01-01")
    assert run(*prune, input="n\n").exit_code == 1
    assert "events    23" in run_ok("info", "--db", db)
    assert run_ok(*prune, input="y\n").endswith("removed 17 events of 2 sessions\n")
    check_output = run_ok("info", "--db", db, "--check")
    assert "sessions  1\nevents    6\ncalls     5\n" in check_output
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in Path(db).parent.glob("log.db*"))
    assert run_ok(*prune).startswith("nothing to remove")
    assert run_ok(*prune, "--audit-too", "--yes") == "removed 6 events of 1 session\n"
    assert "sessions  0" in run_ok("info", "--db", db)


def test_the_default_age_can_be_configured(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no age is given: pass --older-than 90d" in refusal_message("prune", "--db", db)
    monkeypatch.setenv("HOLDFAST_RETENTION_DAYS", "30")
    assert "would remove 2 events of 1 session " in run_ok("prune", "--db", db, "--dry-run")


def test_an_invalid_time_is_refused_with_its_option(db: str) -> None:
    assert "--older-than takes 7d" in refusal_message("prune", "--db", db, "--older-than", "soon")


def test_an_export_contains_no_content_unless_requested(db: str, tmp_path: Path) -> None:
    output = run_ok("export", "--db", db)
    header, *events, end = map(json.loads, output.splitlines())
    assert (header["holdfast_export"], header["content"]) == (1, False)
    assert (end["sessions"], end["events"]) == (2, 23)
    assert len(events) == 23
    for secret in (SECRET, "/home/ada", "launch", "message 4"):
        assert secret not in output
    assert "0.0123" in output
    assert SECRET in run_ok("export", "--db", db, "--content")


def test_an_exported_file_is_private_and_overwrites_nothing(db: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    run_ok("export", str(file), "--db", db, "--content")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "already exists" in refusal_message("export", str(file), "--db", db)


def test_one_session_or_the_newer_ones_are_exported_whole(db: str) -> None:
    assert run_ok("export", "--db", db, "--session", "t").count("\n") == 4
    assert run_ok("export", "--db", db, "--since", "2027-01-01").count("\n") == 23
    assert "there is no session 'none'" in refusal_message("export", "--db", db, "--session", "none")


def test_an_export_is_imported_and_recognised_the_second_time(db: str, tmp_path: Path) -> None:
    file, other = str(tmp_path / "out.jsonl"), str(tmp_path / "other.db")
    run_ok("export", file, "--db", db, "--content")
    assert run_ok("import", file, "--db", other) == "2 sessions: 23 events added, 0 already stored\n"
    assert run_ok("import", file, "--db", other) == "2 sessions: 0 events added, 23 already stored\n"
    assert run_ok("export", "--content", "--db", other).splitlines()[1:] == Path(file).read_text().splitlines()[1:]
    run_ok("info", "--db", other, "--check")


def test_an_import_continues_a_session_and_refuses_a_diverged_one(db: str, tmp_path: Path) -> None:
    file, other = str(tmp_path / "out.jsonl"), str(tmp_path / "other.db")
    run_ok("export", file, "--db", db, "--content")
    with SqliteStore(other) as store:
        store.append([PAST]).result(10)
    assert run_ok("import", file, "--db", other) == "2 sessions: 22 events added, 1 already stored\n"
    with SqliteStore(other) as store:
        store.delete("s")
        store.append([message_event(99)]).result(10)
    assert "line 4: session 's' has different events here" in refusal_message("import", file, "--db", other)


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
def test_an_invalid_or_truncated_export_is_refused(tmp_path: Path, text: str) -> None:
    file, other = tmp_path / "out.jsonl", tmp_path / "other.db"
    file.write_text(text)
    assert BAD[text] in refusal_message("import", str(file), "--db", str(other))
    if "export of" in BAD[text]:
        assert not other.exists()


def test_a_missing_store_is_reported() -> None:
    assert "there is no store yet" in refusal_message("info")


def test_a_workspace_cannot_set_the_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "config.toml").write_text("retention_days = 1\n")
    monkeypatch.chdir(tmp_path)
    assert "retention_days cannot be set by a workspace" in refusal_message("prune")
