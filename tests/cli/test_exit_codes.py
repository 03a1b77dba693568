"""The table of exit codes in docs/errors.md is what commands return."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.commands import run_in_process

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def documented_codes() -> set[int]:
    table = PAGE.read_text().partition("## Exit codes")[2]
    return {int(code) for cell in re.findall(r"(?m)^\| ([\d, ]+) \|", table) for code in cell.split(", ")}


def test_the_table_lists_the_codes_that_the_commands_return() -> None:
    hangup, terminated = 128 + signal.SIGHUP, 128 + signal.SIGTERM
    assert documented_codes() == {0, 1, 2, 130, hangup, terminated}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("models", "--search", "claude-sonnet-5-5"), 0),
        (("audit", "no-such-folder"), 1),
        (("sessions", "show", "nothing"), 1),
        (("no-such-command",), 2),
        (("report", "--no-such-option"), 2),
        (("report", "--limit", "none"), 2),
        (("report", "--since", "soon"), 2),
        (("audit", "--until", ""), 2),
        (("sessions", "list", "--since", "7x"), 2),
        (("db", "prune", "--older-than", "old"), 2),
        (("gateway", "spend", "--since", "2026-13-01"), 2),
        (("keys", "create", "--scope", "read", "--expires", "soon"), 2),
        (("explain", "no-such-file.json"), 2),
        (("sessions", "list", "--verdict", "nonsense"), 2),
        (("history", "s1", "--range", "some"), 2),
        (("keys", "create", "--scope", "root"), 2),
        (("keys", "create", "--scope", "gateway", "--budget-usd-day", "-1"), 2),
        (("connect", "claude-code", "--url", "127.0.0.1:8787"), 2),
        (("simulate", "--port", "99999"), 2),
        (("serve", "--port", "0", "--upstream", "x"), 2),
        (("serve", "--port", "0", "--upstream", "x=ftp://y"), 2),
        (("serve", "--port", "0", "--volatile", "x=["), 2),
        (("serve", "--port", "0", "--keep-alive", "1"), 2),
        (("serve", "--port", "0", "--otlp", "nonsense"), 2),
        (("serve", "--port", "0", "--alert-webhook", "nonsense"), 2),
        (("serve", "--workers", "2", "--simulate"), 2),
        (("config", "--workspace", "no-such-folder"), 2),
        (("connect", "claude-code", "--key", "a key"), 2),
        (("instructions", "coverage", "--url", "ftp://x"), 2),
        (("gateway", "try", "body.json", "--volatile", "x"), 2),
        (("gateway", "try", "body.json", "--volatile", "x=["), 2),
        (("gateway", "try", "body.json", "--speaks", "gemini"), 2),
        (("mcp", "--db", "no-such-store.db"), 1),
        (("learned", "--db", "no-such-store.db"), 1),
    ],
)
def test_command_returns_the_documented_code(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    (tmp_path / "body.json").write_text('{"contents": []}')
    done = run_in_process(*arguments, cwd=tmp_path, HOLDFAST_HOME=str(tmp_path / "home"))
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("report", "--no-such-option"),
            "holdfast report: No such option '--no-such-option'. See `holdfast report --help`.",
        ),
        (("db", "purge"), "holdfast db: No such command 'purge'. Did you mean 'prune'? See `holdfast db --help`."),
        (("completion",), "holdfast completion: Missing argument"),
        (("audit", "--html"), "holdfast audit: Option '--html' requires an argument. See `holdfast audit --help`."),
        (("seesions", "list"), "holdfast: No such command 'seesions'. Did you mean 'sessions'? See `holdfast --help`."),
        (("doctor", "nothing"), "holdfast: nothing: No such file or directory; write module:function for a function"),
        (("simulate", "--port", "99999"), "holdfast simulate: Invalid value for '--port': 99999 is not in the range"),
        (("serve", "--volatile", "x=["), "holdfast: the rule 'x' is not a valid regular expression"),
        (("config", "all"), "holdfast config: Got unexpected extra argument (all). See `holdfast config --help`."),
        (("chat", "no-such-folder"), "holdfast chat: Invalid value for '[DIR]': "),
        (("report", "--html", "/"), "holdfast report: Invalid value for '--html': "),
        (("explain", "no-such-file.json"), "holdfast: no-such-file.json: "),
        (("report", "--since", "soon"), "holdfast: --since takes "),
        (("sessions", "list", "--verdict", "x"), "holdfast: --verdict takes one of held, planned, "),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run_in_process(*arguments, cwd=tmp_path, HOLDFAST_HOME=str(tmp_path / "home"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_group_without_a_command_prints_its_help(tmp_path: Path) -> None:
    done = run_in_process("db", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: holdfast db [OPTIONS] COMMAND [ARGS]...\n")
    assert "  prune " in done.stderr


def test_a_key_that_was_typed_as_an_option_is_not_repeated(tmp_path: Path) -> None:
    key = "sk-ant-api03-" + "a1B2" * 12
    done = run_in_process("report", f"--{key}", cwd=tmp_path)
    assert (done.returncode, key in done.stderr) == (2, False)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_server_that_is_stopped_returns_0(tmp_path: Path, stop: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "simulate", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(stop)
    assert process.wait(timeout=20) == 0
    process.stdout.close()


def test_command_at_work_that_is_stopped_by_ctrl_c_returns_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.models.command.callback", lambda **options: stop())
    assert run_in_process("models").returncode == 130


def test_command_that_is_stopped_by_ctrl_c_returns_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "simulate", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) in (0, 130)
    process.stdout.close()
