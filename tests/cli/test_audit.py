"""`holdfast audit`: its output, its sources, and its refusals."""

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import termios
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.agents import MakeAgent, says
from tests.support.client_transcripts import SESSION, Script, loop, usage
from tests.support.commands import run_in_process

from holdfast.cli.format import track_progress
from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.ledger.spending import FIRST_PROMPT, Spending
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.usage import Usage

OTHER = "0ther000-0000-4000-8000-000000000002"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sessions, one of them with a pause of ten minutes; a subagent; an invalid line."""
    projects = tmp_path / "projects"
    loop([10, 600, 10]).write(projects / "-home-ann-harbour" / f"{SESSION}.jsonl")
    agent = Script(agent="a1").ask().reply(usage(0, 5_000))
    agent.write(projects / "-home-ann-harbour" / SESSION / "subagents" / "agent-a1.jsonl")
    quiet = loop([10], OTHER).write(projects / "-home-ann-quay" / f"{OTHER}.jsonl")
    with quiet.open("a") as file:
        file.write("broken\n")
    return projects


def audit(*arguments: object) -> Result:
    result = CliRunner().invoke(command, ["audit", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def report(*arguments: object) -> Spending:
    return msgspec.json.decode(audit(*arguments, "--json").output, type=Spending)


def test_spending_and_loss_come_first_in_plain_words(folder: Path) -> None:
    lines = audit(folder).output.splitlines()
    cache_write, read, plain, output = 2 * 19_997 + 3 * 1_997 + 23_997 + 5_000, 64_000, 7 * 3, 7 * 100
    spent = (3.75 * cache_write + 0.30 * read + 3 * plain + 15 * output) / 1e6
    assert lines[0].startswith(f"You spent ${spent:.4f} on 7 calls in 2 sessions, 2026-04-01 to 2026-04-01; $0.")
    assert lines[2].startswith("$0.0759 of it (")
    assert lines[2].endswith("went to 1 cache miss.")
    assert "Holdfast's plan would have cost about $0." in lines[3]


def test_the_worst_session_is_first_with_its_main_cause(folder: Path) -> None:
    lines = audit(folder).output.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("session"))
    assert lines[heading + 1].split()[:5] == [SESSION[:8], "2026-04-01", "harbour", "sonnet-4-6", "5+1"]
    assert "ttl_expired" in lines[heading + 1]
    assert lines[heading + 2].startswith(OTHER[:8])


def test_json_contains_causes_models_sessions_and_invalid_lines(folder: Path) -> None:
    read = report(folder)
    assert (read.total.calls, read.conversations, read.total.cache_misses, read.broken_lines) == (7, 3, 1, 1)
    assert read.broken == (f"{OTHER}.jsonl:7: not a transcript line",)
    (loss,) = read.losses
    assert (loss.cause, loss.calls, loss.tokens) == ("ttl_expired", 1, 21_997)
    assert float(loss.lost_usd) == pytest.approx(22_000 * (3.75 - 0.30) / 1e6, rel=1e-3)
    (model,) = read.models
    assert (model.name, read.takes_breakpoints) == ("anthropic:claude-sonnet-4-6", True)
    first, second = read.sessions
    assert (first.id, first.subagents, second.id) == (SESSION, 1, OTHER)
    assert [point.tokens for point in read.worst_session_context] == [20_000, 22_000, 24_000, 26_000]


def test_money_is_shown_by_kind_of_token_and_adds_up(folder: Path) -> None:
    read = report(folder)
    kinds = {row.kind: row for row in read.total.kinds}
    assert {kind: row.tokens for kind, row in kinds.items()} == {
        "cache_read": 64_000,
        "cache_write_5m": 2 * 19_997 + 3 * 1_997 + 23_997 + 5_000,
        "input": 21,
        "output": 700,
    }
    assert sum(row.usd for row in read.total.kinds) == read.total.usd
    assert sum(row.tokens for row in read.total.kinds) == read.total.tokens
    text = audit(folder).output
    assert any(line.split()[:3] == ["cache", "reads", "64,000"] for line in text.splitlines())


def test_results_of_a_tool_count_in_every_later_call(folder: Path) -> None:
    tools = {row.tool: row for row in report(folder, "--session", SESSION).tools}
    # Three results of 2,000 tokens, replies included: sent again by two, one and no later calls.
    added = [tools[name] for name in ("Read", "(replies)")]
    assert sum(row.tokens for row in added) == pytest.approx(6_000, abs=5)
    assert sum(row.resent_tokens for row in added) == pytest.approx(2_000 * 3, abs=5)
    assert (tools["Read"].results, tools[FIRST_PROMPT].resent_tokens) == (3, 3 * 20_000)
    assert "Read " in audit(folder).output


def test_context_is_grouped_by_how_often_it_was_sent_again(folder: Path) -> None:
    never, few, *others = report(folder, "--session", OTHER).rereads
    assert (never.context_tokens, never.resent_tokens) == (2_000, 0)
    assert (few.times_min, few.times_max, few.context_tokens, few.resent_tokens) == (1, 9, 20_000, 20_000)
    assert [row.context_tokens for row in others] == [0, 0, 0]


def test_projects_and_models_can_be_chosen(folder: Path) -> None:
    # Every line of these transcripts has the same working directory.
    assert report(folder, "--project", "HARBOUR").total.calls == 7
    assert report(folder, "--model", "Sonnet").total.calls == 7
    with pytest.raises(UserError, match="no project has 'quay' in its path"):
        audit(folder, "--project", "quay")
    with pytest.raises(UserError, match="no call with reported usage matches --model opus in"):
        audit(folder, "--model", "opus")


def test_csv_has_one_row_per_session_and_no_formula(folder: Path, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(audit(folder, "--csv").output)))
    read = report(folder)
    assert [row["session"] for row in rows] == [session.id for session in read.sessions]
    assert [row["usd"] for row in rows] == [str(session.amounts.usd) for session in read.sessions]
    hostile = loop([], "=cmd|' /C calc'!A0").write(tmp_path / "hostile.jsonl")
    (row,) = csv.DictReader(io.StringIO(audit(hostile, "--csv").output))
    assert row["session"].startswith("'=cmd")


def test_a_long_session_should_be_compacted(tmp_path: Path) -> None:
    path = loop([10] * 80, head=30_000, step=3_000).write(tmp_path / "a.jsonl")
    read = report(path)
    (action,) = [action for action in read.actions if action.action.startswith("compact at ")]
    assert action.usd_a_week > 0
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW=" in action.how
    assert len(read.actions) <= 3
    output = audit(path).output
    assert f"{action.action}: about $" in output
    assert "Assumed: each compaction keeps the first prompt and 10,000 tokens" in output


def test_sessions_that_pause_should_have_a_longer_ttl(tmp_path: Path) -> None:
    path = loop([10, 600] * 8, head=60_000, step=200).write(tmp_path / "a.jsonl")
    assert any("1 h" in action.action or "TTL" in action.action for action in report(path).actions)


def test_ranges_are_shown_on_request(folder: Path) -> None:
    assert "optimum in hindsight" not in audit(folder).output
    assert report(folder).planned_range_usd is None
    assert "optimum in hindsight" in audit(folder, "--verbose").output
    read = report(folder, "--verbose")
    assert read.planned_range_usd is not None
    assert read.planned_range_usd[0] <= read.planned_usd <= read.planned_range_usd[1]


def test_records_of_unknown_kinds_are_counted(folder: Path) -> None:
    with next(folder.rglob(f"{OTHER}.jsonl")).open("a") as file:
        file.write('{"type": "weather", "sessionId": "x"}\n' * 2)
    assert report(folder).unknown_records == {"weather": 2}
    assert "records of unknown kinds: weather (2)" in audit(folder, "--verbose").output


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_two_processes_count_as_one_does(folder: Path, method: str) -> None:
    if method == "fork" and sys.platform != "linux":
        pytest.skip("processes are forked on Linux only")
    first = next(folder.rglob(f"{SESSION}.jsonl"))
    (folder / "resumed.jsonl").write_bytes(first.read_bytes())
    alone = report(folder)
    # In an interpreter of its own, without the threads of the test runner: these decide how processes are started.
    script = f"""
import sys, threading
from holdfast.replay import audit
from holdfast.cli.main import main
if __name__ == "__main__":
    audit.PARALLEL_BYTES_MIN = dict.fromkeys(audit.PARALLEL_BYTES_MIN, 0)
    if {method == "spawn"}:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    assert audit._choose_start_method() == {method!r}
    sys.argv = ["holdfast", "audit", {str(folder)!r}, "--json"]
    main()
"""
    file = folder.parent / "parallel.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert msgspec.json.decode(done.stdout, type=Spending, strict=False) == alone
    assert alone.total.calls == 7


def test_every_transcript_is_read_again_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(os.environ["HOLDFAST_HOME"]) / "spending-cache.db"
    alone = audit(folder, "--no-cache", "--json").output
    assert not file.exists()
    monkeypatch.setattr("holdfast.cli.costs.audit.system_clock", lambda: time.time() + 60)
    for _ in range(2):
        assert audit(folder, "--json").output == alone
    assert file.exists()


def test_a_shortened_list_says_so(folder: Path) -> None:
    assert "1 more session" in audit(folder, "--limit", 1).output
    assert "quay" not in audit(folder, "--limit", 1).output


def test_one_session_is_selected_by_the_start_of_its_id(folder: Path) -> None:
    assert report(folder, "--session", SESSION[:6]).total.calls == 5
    with pytest.raises(UserError, match="no sessions begin with 'nobody'; `--json`"):
        audit(folder, "--session", "nobody")
    with pytest.raises(UserError, match="2 sessions begin with '': 0ther000"):
        audit(folder, "--session", "")


def test_only_calls_since_a_day_are_counted(folder: Path) -> None:
    assert report(folder, "--since", "2026-04-01").total.calls == 7
    assert report(folder, "--since", "2026-04-01T09:05").total.calls == 2
    assert report(folder, "--until", "2026-04-01T09:05").total.calls == 5
    with pytest.raises(UserError, match="since 2026-04-02"):
        audit(folder, "--since", "2026-04-02")


def test_files_last_modified_before_the_day_are_not_read(folder: Path) -> None:
    for file in folder.rglob("*.jsonl"):
        os.utime(file, (0, 0))
    with pytest.raises(UserError, match="no call with reported usage") as refused:
        audit(folder, "--since", "2026-04-01")
    assert "could not be read" not in str(refused.value)


def test_a_model_without_a_price_is_named_and_its_tokens_counted(tmp_path: Path) -> None:
    path = Script(model="claude-unheard-of\x1b[31m").ask().reply(usage(0, 5_000)).write(tmp_path / "a.jsonl")
    output = audit(path).output
    assert "unpriced: 1 call of anthropic:claude-unheard-of [31m, 5,103 tokens; no sum of money contains" in output
    assert output.startswith("unpriced: 1 call in 1 session")
    assert "\x1b" not in output
    assert json.loads(audit(path, "--json").output)["total"]["usd"] is None
    assert "unpriced" in output
    assert "$0.00 " not in output


def test_names_from_the_transcript_move_no_cursor(tmp_path: Path) -> None:
    script = loop([10], "\x1b[2Jid")
    for line in script.lines:
        line["cwd"] = "/home/\x1b[31mred\u202e"
    path = script.write(tmp_path / "\x1b[2J.jsonl")
    with path.open("a") as file:
        file.write("broken\n")
    output = audit(path).output
    assert all(character.isprintable() or character == "\n" for character in output)


def list_policies(*arguments: object) -> list[str]:
    return sorted(row["policy"] for row in json.loads(audit(*arguments, "--json").output)["other_policies"])


def test_peers_policies_are_replayed_on_request(folder: Path) -> None:
    assert list_policies(folder, "--session", SESSION, "--rivals") == sorted(
        [AdaptivePolicy.name, *new_compared_policies()]
    )
    assert list_policies(folder) == []
    assert "context-guru" in audit(folder, "--rivals").output


def test_our_policy_costs_among_its_peers_what_the_audit_says_it_does(folder: Path) -> None:
    shown = json.loads(audit(folder, "--session", SESSION, "--rivals", "--json").output)
    costs = {row["policy"]: row["cost_usd"] for row in shown["other_policies"]}
    assert costs[AdaptivePolicy.name] == pytest.approx(float(shown["planned_usd"]))
    # Replies are in every figure.
    replies = sum(float(kind["usd"]) for kind in shown["total"]["kinds"] if kind["kind"] in ("output", "thinking"))
    assert min(costs.values()) > replies > 0


def test_peers_policies_skip_calls_without_breakpoints_or_price(tmp_path: Path) -> None:
    path = Script(model="nobody").ask().reply(usage(0, 5_000)).write(tmp_path / "a.jsonl")
    assert list_policies(path, "--rivals") == []


@pytest.fixture
async def store(agent: MakeAgent, tmp_path: Path) -> Path:
    path = tmp_path / "own.db"
    used = Usage(cache_write_5m=9_000, output=50)
    with SqliteStore(path) as log:
        recorded_agent = agent(says("One.", usage=used), says("Two.", usage=used), store=log, system_prompt="Be brief.")
        async with recorded_agent.session as session:
            await session.send("one")
            await session.send("two")
    return path


async def test_a_store_is_recognised_by_its_bytes_or_its_address(store: Path) -> None:
    for address in (store, f"sqlite:///{store}"):
        read = report(address)
        assert (read.total.calls, read.total.cache_misses) == (2, 1)
    assert len(list_policies(store, "--rivals")) == len(new_compared_policies()) + 1


def test_new_user_with_a_demo_alone_learns_that_there_are_no_transcripts(tmp_path: Path) -> None:
    assert run_in_process("demo", "--keep", cwd=tmp_path).returncode == 0
    with pytest.raises(UserError) as refused:
        audit()
    message = str(refused.value)
    assert message.startswith(
        "no transcripts of Claude Code, Codex, Gemini CLI, opencode or pi in this home, and no call"
    )
    assert "1 simulated session; --simulated includes" in message
    assert message.endswith("; name a folder or a store")
    assert "0 lines" not in message


def test_without_a_path_the_clients_own_folder_is_audited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(Path.home() / "moved")
    with pytest.raises(UserError, match=r"nothing to audit: .*\.claude/projects.*holdfast\.db"):
        audit()
    (Path.home() / ".claude").mkdir()
    (Path.home() / "moved").rename(Path.home() / ".claude" / "projects")
    assert report().total.calls == 7
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(Path.home() / "elsewhere"))
    with pytest.raises(UserError, match="elsewhere"):
        audit()


async def test_without_transcripts_the_configured_store_is_audited(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DB", str(store))
    assert report().total.calls == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["store.db", "folder"])
def test_what_may_not_be_read_is_reported_as_such(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.write_bytes(b"SQLite format 3")
    path.chmod(0)
    refused = run_in_process("audit", str(path))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "cannot be read: Permission denied" in refused.stderr


def test_an_empty_folder_is_reported_in_one_line_with_what_was_searched_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no call with reported usage in the transcripts \(\.jsonl\) at"):
        audit(tmp_path)
    with pytest.raises(UserError, match="there is nothing at"):
        audit(tmp_path / "gone")


def test_a_plan_with_a_negligible_saving_is_not_reported_as_saving(tmp_path: Path) -> None:
    path = Script().ask().reply(usage(0, 9_000)).write(tmp_path / "a.jsonl")
    lines = audit(path).output.splitlines()
    assert lines[2] == "No call is known to have lost anything."
    assert lines[3] == "Holdfast's plan would have cost about $0.0353 on the same prompts."
    assert "let Holdfast place" not in audit(path).output


def test_a_plan_that_costs_more_says_so(tmp_path: Path) -> None:
    # Read an hour after it was written for five minutes: another session kept it warm, which no plan can rely on.
    script = Script().ask().reply(usage(0, 90_000)).ask(after=4_000).reply(usage(90_003, 100))
    read = report(script.write(tmp_path / "a.jsonl"))
    assert read.planned_usd > read.total.usd
    assert not any("Holdfast" in action.action for action in read.actions)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("total", "expected"), [(3, "3 of 3 things"), (None, "3 things")])
def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, total: int | None, expected: str) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(track_progress(range(3), "things", total)) == [0, 1, 2]
    assert isinstance(sys.stderr, Terminal)
    assert expected in sys.stderr.getvalue()


def test_progress_is_not_shown_without_a_terminal(folder: Path) -> None:
    assert audit(folder).stderr == ""


@pytest.mark.parametrize(("columns", "model"), [(80, False), (120, True)])
def test_a_narrow_terminal_shows_fewer_columns_and_wraps_nothing(folder: Path, columns: int, model: bool) -> None:
    controller, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, columns))
    environ = {**os.environ, "TERM": "xterm"}
    environ.pop("COLUMNS", None)
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "audit", str(folder)],
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env=environ,
    ) as running:
        os.close(terminal)
        output = b""
        with contextlib.suppress(OSError):
            while part := os.read(controller, 4096):
                output += part
    os.close(controller)
    assert running.returncode == 0
    rows = [line for line in output.decode().splitlines() if line.startswith(SESSION[:8])]
    assert ["sonnet-4-6" in row for row in rows] == [model]
    assert all("$" in row.split()[-1] for row in rows)


def test_calls_without_a_time_are_reported_as_undated(tmp_path: Path) -> None:
    script = loop([10])
    for line in script.lines:
        del line["timestamp"]
    output = audit(script.write(tmp_path / "a.jsonl")).output
    assert "in 1 session, undated to undated;" in output
    assert "1970" not in output
