"""`holdfast audit`: its output, its sources, and its refusals."""

import contextlib
import io
import os
import subprocess
import sys
import termios
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.agents import MakeAgent, says
from tests.support.client_transcripts import SESSION, Script, loop, usage

from holdfast.cli.main import command
from holdfast.cli.tables import track_progress
from holdfast.errors import UserError
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.replay.audit import AuditReport
from holdfast.replay.trace_files import BrokenLine
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


def report(*arguments: object) -> AuditReport:
    return msgspec.json.decode(audit(*arguments, "--json").output, type=AuditReport)


def test_spending_and_loss_come_first_in_plain_words(folder: Path) -> None:
    lines = audit(folder).output.splitlines()
    cache_write, read, plain, output = 2 * 19_997 + 3 * 1_997 + 23_997 + 5_000, 64_000, 7 * 3, 7 * 100
    spent = (3.75 * cache_write + 0.30 * read + 3 * plain + 15 * output) / 1e6
    assert lines[0] == f"You spent ${spent:.4f} on 7 calls in 2 sessions, 2026-04-01 to 2026-04-01."
    assert lines[1].startswith("$0.0759 of it (")
    assert lines[1].endswith("went to 1 cache miss.")
    assert "Holdfast's plan would have cost" in lines[2]


def test_the_worst_session_is_first_with_its_main_cause(folder: Path) -> None:
    lines = audit(folder).output.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("session"))
    assert lines[heading + 1].split()[:5] == [SESSION[:8], "2026-04-01", "harbour", "sonnet-4-6", "5+1"]
    assert "expired" in lines[heading + 1]
    assert lines[heading + 2].startswith(OTHER[:8])


def test_json_contains_causes_models_sessions_and_invalid_lines(folder: Path) -> None:
    read = report(folder)
    assert (read.calls, read.conversations, read.cache_misses, read.broken_lines) == (7, 3, 1, 1)
    assert read.broken == (BrokenLine(f"{OTHER}.jsonl", 7, "not a transcript line"),)
    (cause,) = read.causes
    assert (cause.cause, cause.calls, cause.tokens) == ("expired", 1, 22_000)
    assert cause.lost_usd == pytest.approx(22_000 * (3.75 - 0.30) / 1e6, rel=1e-3)
    (model,) = read.models
    assert (model.model, model.takes_breakpoints) == ("anthropic:claude-sonnet-4-6", True)
    first, second = read.sessions
    assert (first.session, first.subagents, second.session) == (SESSION, 1, OTHER)


def test_a_shortened_list_says_so(folder: Path) -> None:
    assert "1 more session" in audit(folder, "--limit", 1).output
    assert "quay" not in audit(folder, "--limit", 1).output


def test_one_session_is_selected_by_the_start_of_its_id(folder: Path) -> None:
    assert report(folder, "--session", SESSION[:6]).calls == 5
    with pytest.raises(UserError, match="no sessions begin with 'nobody'; `--json`"):
        audit(folder, "--session", "nobody")
    with pytest.raises(UserError, match="2 sessions begin with '': 0ther000"):
        audit(folder, "--session", "")


def test_only_calls_since_a_day_are_counted(folder: Path) -> None:
    assert report(folder, "--since", "2026-04-01").calls == 7
    with pytest.raises(UserError, match="since 2026-04-02"):
        audit(folder, "--since", "2026-04-02")


def test_files_last_modified_before_the_day_are_not_read(folder: Path) -> None:
    for file in folder.rglob("*.jsonl"):
        os.utime(file, (0, 0))
    with pytest.raises(UserError, match="; 0 lines could not be read"):
        audit(folder, "--since", "2026-04-01")


def test_a_model_without_a_price_is_named_and_its_tokens_counted(tmp_path: Path) -> None:
    path = Script(model="claude-unheard-of\x1b[31m").ask().reply(usage(0, 5_000)).write(tmp_path / "a.jsonl")
    output = audit(path).output
    assert "No price is known for anthropic:claude-unheard-of [31m: 1 call with 5,103 tokens" in output
    assert "\x1b" not in output
    assert report(path).spent_usd == 0


def test_names_from_the_transcript_move_no_cursor(tmp_path: Path) -> None:
    script = loop([10], "\x1b[2Jid")
    for line in script.lines:
        line["cwd"] = "/home/\x1b[31mred\u202e"
    path = script.write(tmp_path / "\x1b[2J.jsonl")
    with path.open("a") as file:
        file.write("broken\n")
    output = audit(path).output
    assert all(character.isprintable() or character == "\n" for character in output)


def test_peers_policies_are_replayed_on_request(folder: Path) -> None:
    read = report(folder, "--session", SESSION, "--rivals")
    assert sorted(row.policy for row in read.other_policies) == sorted([AdaptivePolicy.name, *new_compared_policies()])
    assert report(folder).other_policies == ()
    assert "context-guru" in audit(folder, "--rivals").output


def test_peers_policies_skip_calls_without_breakpoints_or_price(tmp_path: Path) -> None:
    path = Script(model="nobody").ask().reply(usage(0, 5_000)).write(tmp_path / "a.jsonl")
    assert report(path, "--rivals").other_policies == ()


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
        assert (read.calls, read.cache_misses) == (2, 1)
    assert len(report(store, "--rivals").other_policies) == len(new_compared_policies()) + 1


def test_without_a_path_the_clients_own_folder_is_audited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(Path.home() / "moved")
    with pytest.raises(UserError, match=r"nothing to audit: .*\.claude/projects.*holdfast\.db"):
        audit()
    (Path.home() / ".claude").mkdir()
    (Path.home() / "moved").rename(Path.home() / ".claude" / "projects")
    assert report().calls == 7
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(Path.home() / "elsewhere"))
    with pytest.raises(UserError, match="elsewhere"):
        audit()


async def test_without_transcripts_the_configured_store_is_audited(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DB", str(store))
    assert report().calls == 2


def test_an_empty_folder_is_reported_in_one_line_with_what_was_searched_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no call with reported usage in the transcripts \(\.jsonl\) at"):
        audit(tmp_path)
    with pytest.raises(UserError, match="there is nothing at"):
        audit(tmp_path / "gone")


def test_a_plan_with_a_negligible_saving_is_not_reported_as_saving(tmp_path: Path) -> None:
    path = Script().ask().reply(usage(0, 9_000)).write(tmp_path / "a.jsonl")
    lines = audit(path).output.splitlines()
    assert lines[1] == "No call missed the cache."
    assert lines[2:4] == [
        "Holdfast's plan would have cost $0.0353 on the same prompts,",
        "about what you spent; the optimum in hindsight is about $0.0285.",
    ]


def test_a_plan_that_costs_more_says_so(tmp_path: Path) -> None:
    # Read an hour after it was written for five minutes: another session kept it warm, which no plan can rely on.
    script = Script().ask().reply(usage(0, 90_000)).ask(after=4_000).reply(usage(90_003, 100))
    assert " more; the optimum in hindsight" in audit(script.write(tmp_path / "a.jsonl")).output.splitlines()[3]


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
    assert "in 1 session, undated to undated." in output
    assert "1970" not in output
