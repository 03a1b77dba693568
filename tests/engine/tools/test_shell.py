"""The run_command tool: what it shows, what it hides, and that no process outlives the call."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.toolboxes import ENVIRON, builtin_toolbox, call

from holdfast.engine.tools.builtin.shell import (
    HEAD_BYTES_MAX,
    TAIL_BYTES_MAX,
    CommandOutput,
    command_environment,
    make_run_command,
)
from holdfast.engine.tools.definition import ToolEnvironment, tool
from holdfast.engine.tools.dispatch import Toolbox, ToolsCancelledError
from holdfast.events.payloads.calls import ToolCompleted
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime.tools import builtin_tools
from holdfast.sources.confined_paths import resolve_roots
from holdfast.types.blocks import ToolUse


def toolbox_with_short_grace(workspace: Path) -> Toolbox:
    """A toolbox whose commands have almost no time to end after a stop."""
    environment = ToolEnvironment("s", resolve_roots(workspace))
    return Toolbox(
        [tool(make_run_command(ENVIRON, grace_seconds=0.1), side_effects="execute")], environment=environment
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def have_ended(pids: list[int]) -> bool:
    """Whether none of the processes runs any more; init takes a moment to reap them."""
    deadline = time.monotonic() + 5
    while any(map(is_running, pids)):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


async def pids_in(file: Path, count: int) -> list[int]:
    for _ in range(500):
        pids = file.read_text().split() if file.exists() else []
        if len(pids) >= count:
            return [int(pid) for pid in pids]
        await asyncio.sleep(0.01)
    raise AssertionError(f"only {len(pids)} of {count} processes came up")


async def test_stdout_and_stderr_of_a_command_are_shown(tmp_path: Path) -> None:
    outcome = await call(builtin_toolbox(tmp_path), "run_command", command="pwd; echo oops >&2; cat")
    assert outcome.text == f"{tmp_path.resolve()}\noops\n"
    completed = outcome.recorded[-1]
    assert isinstance(completed, ToolCompleted)
    assert (completed.success, completed.command_executed) == (True, "pwd; echo oops >&2; cat")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("echo no; exit 3", "no\n[exit code 3]"),
        ("exit 1", "[exit code 1]"),
        ("kill -9 $$", "[ended by signal 9]"),
        ("true", "(no output)"),
    ],
)
async def test_the_exit_code_or_signal_of_a_command_is_shown(tmp_path: Path, command: str, shown: str) -> None:
    outcome = await call(builtin_toolbox(tmp_path), "run_command", command=command)
    assert (outcome.text, outcome.result.is_error) == (shown, False)
    completed = outcome.recorded[-1]
    assert isinstance(completed, ToolCompleted)
    assert completed.success == (command == "true")


async def test_a_command_that_times_out_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    command = "sleep 60 & echo $! > pids; sh -c 'trap \"\" TERM; echo $$ >> pids; sleep 60' & echo began; wait"
    outcome = await call(toolbox_with_short_grace(tmp_path), "run_command", command=command, seconds_max=1)
    assert (outcome.error_class, outcome.text) == ("timeout", "began\n\n[stopped: the time was up]")
    assert await have_ended(await pids_in(tmp_path / "pids", 2))


async def test_a_command_may_clean_up_before_it_is_killed(tmp_path: Path) -> None:
    command = "trap 'echo tidied; exit 0' TERM; echo began; while :; do sleep 0.01; done"
    outcome = await call(builtin_toolbox(tmp_path), "run_command", command=command, seconds_max=1)
    assert outcome.text.startswith("began\n")
    assert outcome.text.endswith("tidied\n\n[stopped: the time was up]")


async def test_a_cancelled_command_has_ended_before_the_turn_ends(tmp_path: Path) -> None:
    async def record(payload: AnyPayload) -> None: ...

    command = "echo $$ > pids; sleep 60 & echo $! >> pids; wait"
    turn = asyncio.ensure_future(
        toolbox_with_short_grace(tmp_path).run_calls(
            [ToolUse("t", "run_command", f'{{"command":"{command}"}}')], record
        )
    )
    pids = await pids_in(tmp_path / "pids", 2)
    turn.cancel()
    with pytest.raises(ToolsCancelledError):
        await turn
    assert await have_ended(pids)


async def test_background_processes_do_not_outlive_the_call(tmp_path: Path) -> None:
    began = time.monotonic()
    outcome = await call(builtin_toolbox(tmp_path), "run_command", command="sleep 60 & echo $! > pids; echo done")
    assert outcome.text == "done\n"
    assert time.monotonic() - began < 30
    assert await have_ended(await pids_in(tmp_path / "pids", 1))


async def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    outcome = await call(
        builtin_toolbox(tmp_path), "run_command", command="exec >&- 2>&-; sleep 0.1; echo end > end; exit 4"
    )
    assert outcome.text == "[exit code 4]"
    assert (tmp_path / "end").read_text() == "end\n"


async def test_a_long_output_is_stored_in_a_file_that_the_model_can_read(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    box = builtin_toolbox(workspace, read_only=[outputs], outputs=outputs)
    outcome = await call(box, "run_command", command="seq 1 20000")
    (stored,) = outputs.iterdir()
    whole = "".join(f"{number}\n" for number in range(1, 20001))
    assert stored.read_text() == whole
    note = f"\n[... {len(whole) - 30_000} bytes left out; all {len(whole)} bytes are in {stored} ...]\n"
    assert outcome.text == whole[:HEAD_BYTES_MAX] + note + whole[-TAIL_BYTES_MAX:]
    assert (await call(box, "read_file", path=str(stored), offset=12_345, limit=1)).text.startswith("12345\n")


async def test_an_endless_output_takes_bounded_memory(tmp_path: Path) -> None:
    outcome = await call(toolbox_with_short_grace(tmp_path), "run_command", command="yes", seconds_max=1)
    assert outcome.error_class == "timeout"
    assert len(outcome.text) < 31_000
    assert "bytes left out; there were " in outcome.text


@pytest.mark.parametrize("sizes", [[30_000], [1] * 50, [30_001], [29_999, 2], [7_000] * 9, [100_000], [20_000, 20_000]])
def test_captured_output_does_not_depend_on_how_it_is_chunked(tmp_path: Path, sizes: list[int]) -> None:
    whole = b"".join(b"%07d\n" % number for number in range(20_000))[: sum(sizes)]
    captured, at = CommandOutput(tmp_path, "t"), 0
    for size in sizes:
        captured.append(whole[at : at + size])
        at += size
    captured.close()
    text = captured.text()
    if len(whole) <= 30_000:
        assert (text, list(tmp_path.iterdir())) == (whole.decode(), [])
        return
    (stored,) = tmp_path.iterdir()
    assert stored.read_bytes() == whole
    assert text.startswith(whole[:20_000].decode() + f"\n[... {len(whole) - 30_000} bytes left out; ")
    assert text.endswith(" ...]\n" + whole[-10_000:].decode())


def test_a_full_disk_does_not_stop_a_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    captured = CommandOutput(tmp_path / "file" / "outputs", "t")
    captured.append(b"x" * 40_000)
    assert "there were 40000 bytes" in captured.text()


async def test_a_command_sees_harmless_variables_and_those_that_the_user_named(tmp_path: Path) -> None:
    secrets = {"ANTHROPIC_API_KEY": "sk-1", "GITHUB_PAT": "gh-1", "PGPASS": "pg-1", "SSH_AUTH_SOCK": "/tmp/agent"}
    environ = ENVIRON | secrets | {"LC_TIME": "C", "VIRTUAL_ENV": "/venv", "HARBOUR": "open"}
    tools = builtin_tools(["run_command"], environ=environ, variables=["HARBOUR", "PGPASS", "NOT_SET"])
    box = Toolbox(tools, environment=ToolEnvironment("s", resolve_roots(tmp_path)))
    seen = dict(line.split("=", 1) for line in (await call(box, "run_command", command="env")).text.splitlines())
    named = {"HARBOUR": "open", "PGPASS": "pg-1"}
    # The shell sets PWD and _ by itself.
    assert {name: seen[name] for name in seen.keys() - {"PWD", "_", "OLDPWD", "SHLVL"}} == (
        ENVIRON | named | {"LC_TIME": "C", "VIRTUAL_ENV": "/venv"}
    )


def test_a_harmless_variable_is_removed_if_its_value_contains_a_password() -> None:
    retained = {"HTTP_PROXY": "http://proxy:3128/", "NO_PROXY": "localhost"}
    removed = {"https_proxy": "http://me:pass@proxy:3128/"}
    assert command_environment(retained | removed) == retained
    assert command_environment(removed, also=["https_proxy"]) == removed


SPY = """
import asyncio, ctypes, os, sys
from pathlib import Path
from holdfast.engine.tools.builtin.shell import make_run_command
from tests.support.toolboxes import call
from holdfast.engine.tools.definition import ToolEnvironment
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.engine.tools.definition import tool
from holdfast.sources.confined_paths import resolve_roots

# Before the change of user, who may not be able to read the libraries that are loaded when a tool is defined.
run_command = tool(make_run_command({"PATH": "/usr/bin:/bin"}))
if os.geteuid() == 0:
    # Nothing can be hidden from root.
    os.setgid(65534)
    os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
child = os.fork()
if child == 0:
    os.execv("/bin/sh", ["sh", "-c", "cat /proc/$PPID/environ"])
os.waitpid(child, 0)
print("|", flush=True)
environment = ToolEnvironment("s", resolve_roots(Path("/")))
box = Toolbox([run_command], environment=environment)
print(asyncio.run(call(box, "run_command", command="cat /proc/$PPID/environ; cat /proc/$PPID/maps")).text)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows processes as files")
def test_a_command_cannot_read_the_environment_of_its_parent() -> None:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), "SOME_API_KEY": "sk-hidden"}
    ran = subprocess.run([sys.executable, "-c", SPY], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    without, _, with_tool = ran.stdout.partition("|")
    assert "sk-hidden" in without
    assert "sk-hidden" not in with_tool
    assert with_tool.count("Permission denied") == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"command": " "}, "The command is empty or holds a NUL character."),
        ({"command": "a\0b"}, "The command is empty or holds a NUL character."),
        ({"command": "true", "seconds_max": 0}, "seconds_max must be between 1 and 600."),
        ({"command": "true", "seconds_max": 601}, "seconds_max must be between 1 and 600."),
    ],
)
async def test_a_command_that_cannot_be_run_says_why(tmp_path: Path, arguments: dict[str, int], reason: str) -> None:
    outcome = await call(builtin_toolbox(tmp_path), "run_command", **arguments)
    assert (outcome.error_class, outcome.text) == ("execution_error", reason)


async def test_a_command_needs_a_workspace() -> None:
    outcome = await call(Toolbox([tool(make_run_command(ENVIRON))]), "run_command", command="true")
    assert (outcome.error_class, outcome.text) == ("permission_denied", "This session has no workspace.")


async def test_no_child_process_is_left_unreaped(tmp_path: Path) -> None:
    await call(builtin_toolbox(tmp_path), "run_command", command="echo $$ > pids")
    (pid,) = await pids_in(tmp_path / "pids", 1)
    assert not Path(f"/proc/{pid}").exists()
