"""Limits on the output and the duration of a command; beyond them it is killed."""

import os
import sys
import time
from itertools import chain, repeat
from pathlib import Path

import pytest

from holdfast.clock import Clock
from holdfast.sources.command import BoundedOutput, run_bounded


def run_python(
    code: str,
    *,
    seconds_max: float = 10.0,
    bytes_max: int = 100,
    cwd: Path = Path("/"),
    monotonic: Clock = time.monotonic,
) -> BoundedOutput:
    command = [sys.executable, "-c", code]
    return run_bounded(
        command, cwd, {"ONLY": "this"}, seconds_max=seconds_max, bytes_max=bytes_max, monotonic=monotonic
    )


def clock_late_after(looks: int) -> Clock:
    """A clock that stands still for that many readings, and then is past every deadline."""
    times = chain(repeat(0.0, looks), repeat(1_000.0))
    return lambda: next(times)


def is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_output_and_exit_code_are_returned() -> None:
    assert run_python("print('hello'); raise SystemExit(3)") == BoundedOutput(b"hello\n", "exited", 3)


def test_the_command_runs_in_its_folder_with_the_given_environment_and_no_input(tmp_path: Path) -> None:
    code = (
        "import os, sys\nprint(os.getcwd(), os.environ['ONLY'], 'HOME' in os.environ, repr(sys.stdin.read()), end='')"
    )
    printed = run_python(code, bytes_max=1_000, cwd=tmp_path)
    assert printed == BoundedOutput(f"{tmp_path} this False ''".encode(), "exited", 0)


def test_standard_error_is_discarded() -> None:
    assert run_python("import sys; sys.stderr.write('secret')").output == b""


def test_output_at_the_limit_is_complete_and_one_byte_more_is_cut() -> None:
    assert run_python("print('x' * 100, end='')") == BoundedOutput(b"x" * 100, "exited", 0)
    assert run_python("print('x' * 101, end='')") == BoundedOutput(b"x" * 100, "cut", None)


def test_a_command_that_never_stops_printing_is_stopped() -> None:
    printed = run_python("import os\nprint(os.getpid(), flush=True)\nwhile True: print('x' * 1000)")
    assert (printed.end, len(printed.output), printed.exit_code) == ("cut", 100, None)
    assert is_gone(int(printed.output.split()[0]))


def test_a_silent_command_is_stopped_at_its_timeout() -> None:
    started = time.monotonic()
    assert run_python("import time; time.sleep(60)", seconds_max=0.1) == BoundedOutput(b"", "timed_out", None)
    assert time.monotonic() - started < 5


def test_a_command_that_takes_too_long_is_killed_with_its_children() -> None:
    code = "import os, time\nif child := os.fork(): print(os.getpid(), child, flush=True)\ntime.sleep(60)"
    printed = run_python(code, monotonic=clock_late_after(2))
    assert (printed.end, printed.exit_code) == ("timed_out", None)
    assert [is_gone(int(pid)) for pid in printed.output.split()] == [True, True]


def test_a_command_that_closes_its_output_and_keeps_running_is_killed() -> None:
    code = "import os, time; print(os.getpid(), flush=True); os.close(1); time.sleep(60)"
    printed = run_python(code, monotonic=clock_late_after(3))
    assert (printed.end, printed.exit_code) == ("timed_out", None)
    assert is_gone(int(printed.output))


def test_without_time_left_there_is_no_wait() -> None:
    started = time.monotonic()
    assert run_python("import time; time.sleep(60)", seconds_max=0.0).end == "timed_out"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("command", [["/no/such/program"], ["/"], ["a\0b"]])
def test_a_command_that_cannot_be_started_says_so(command: list[str]) -> None:
    assert run_bounded(command, Path("/"), {}, seconds_max=1, bytes_max=1) == BoundedOutput(b"", "not_started", None)


def test_a_missing_folder_is_no_exception(tmp_path: Path) -> None:
    assert run_python("print(1)", cwd=tmp_path / "gone") == BoundedOutput(b"", "not_started", None)


def test_running_a_command_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    run_python("print('x' * 200)")
    run_python("print('x')")
    assert len(os.listdir("/proc/self/fd")) == before
