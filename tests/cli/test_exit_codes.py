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
    ],
)
def test_command_returns_the_documented_code(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    done = run_in_process(*arguments, cwd=tmp_path, HOLDFAST_HOME=str(tmp_path / "home"))
    assert done.returncode == code, done.stderr


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
