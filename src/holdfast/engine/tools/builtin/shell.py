"""The tool that runs a shell command in the workspace, with limits on time and output.

A command runs in a process group of its own, which is killed as a whole when the command ends.
"""

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Annotated, Literal

import msgspec

from holdfast.engine.tools.builtin.files import call_roots
from holdfast.engine.tools.definition import ToolContext, ToolError
from holdfast.engine.tools.execution import run_in_thread
from holdfast.engine.tools.output import OUTPUT_FILE_BYTES_MAX, create_spill_file, spill_note, truncation_note
from holdfast.redaction import redact_secrets
from holdfast.sources.command import hide_process_memory
from holdfast.sources.files import decode_text
from holdfast.types.blocks import replace_surrogates

COMMAND_SECONDS = 120
COMMAND_SECONDS_MAX = 600
GRACE_SECONDS = 5.0
# What the model sees of a long output, about 7,500 tokens; the tail often holds the error or the result.
HEAD_BYTES_MAX = 20_000
TAIL_BYTES_MAX = 10_000
_POLL_SECONDS = 0.02
# After the command has exited, its pipe is read until it is silent for _QUIET_SECONDS, for _DRAIN_SECONDS_MAX at
# most: a process that escaped the group may hold the pipe open forever.
_QUIET_SECONDS = 0.2
_DRAIN_SECONDS_MAX = 1.0
CommandEnding = Literal["exited", "timed_out", "stopped"]


# An allow-list, because no pattern finds every secret: GITHUB_PAT is named like none. SSH_AUTH_SOCK is not on it: who
# reaches that socket can log in as the user.
COMMAND_VARIABLES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "TEMP", "TMP", "HOSTNAME", "TZ"),
        *("LANG", "LANGUAGE", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "EDITOR", "PAGER"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "CI"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYENV_ROOT", "PYENV_VERSION", "UV_CACHE_DIR"),
        *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PKG_CONFIG_PATH"),
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "NVM_DIR", "NVM_BIN", "NODE_PATH", "NODE_ENV", "VOLTA_HOME"),
        *("JAVA_HOME", "GOPATH", "GOROOT", "GOCACHE", "CARGO_HOME", "CARGO_TARGET_DIR", "RUSTUP_HOME", "GEM_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *(f"{name}_PROXY" for name in ("HTTP", "HTTPS", "ALL", "NO")),
        *(f"{name}_proxy" for name in ("http", "https", "all", "no")),
    )
)
"""Variables that every command gets, besides `LC_*`, unless their value contains a credential."""


def command_environment(environ: Mapping[str, str], *, also: Sequence[str] = ()) -> dict[str, str]:
    """What a command sees of the environment: harmless variables, and those `also` named by the user."""
    return {
        name: value
        for name, value in environ.items()
        if name in also or ((name in COMMAND_VARIABLES or name.startswith("LC_")) and redact_secrets(value) == value)
    }


def make_run_command(
    environ: Mapping[str, str], *, grace_seconds: float = GRACE_SECONDS
) -> Callable[..., Awaitable[str]]:
    """`run_command`; a command sees `environ`, and has `grace_seconds` to end before it is killed."""

    async def run_command(
        command: Annotated[str, "A command line for sh."],
        context: ToolContext,
        seconds_max: Annotated[int, "After how many seconds to stop it, 600 at most."] = COMMAND_SECONDS,
    ) -> str:
        """Run a command in the workspace and show what it prints. Nothing that it starts outlives it."""
        if not 1 <= seconds_max <= COMMAND_SECONDS_MAX:
            raise ToolError(f"seconds_max must be between 1 and {COMMAND_SECONDS_MAX}.")
        command = replace_surrogates(command)
        if "\0" in command or not command.strip():
            raise ToolError("The command is empty or holds a NUL character.")
        context.command_executed = command
        # Otherwise the command could read the secrets from this process's environment in /proc.
        hide_process_memory()
        captured = CommandOutput(context.output_folder, context.tool_use_id)
        order = CommandRequest(command, call_roots(context).workspace, environ, seconds_max, grace_seconds)
        arguments = {"order": order, "captured": captured, "stop": context.stopped}
        running = asyncio.ensure_future(run_in_thread(run_shell_command, arguments))
        try:
            ended = await asyncio.shield(running)
        except asyncio.CancelledError:
            # The call ends only after its command has ended.
            context.stopped.set()
            await asyncio.wait([running])
            # Retrieved so that asyncio does not log an exception that was never retrieved.
            running.exception()
            raise
        return _result_text(ended, captured, context)

    return run_command


class CommandRequest(msgspec.Struct, frozen=True):
    """A command to run; `grace_seconds` pass between SIGTERM and SIGKILL when it has to be stopped."""

    command: str
    folder: Path
    environ: Mapping[str, str]
    seconds_max: float
    grace_seconds: float = GRACE_SECONDS


class CommandExit(msgspec.Struct, frozen=True):
    """How a command ended; `code` is negative for a signal."""

    ending: CommandEnding
    code: int


class CommandOutput:
    """The output of a command: head and tail in memory, and all of it in a file once it is long."""

    def __init__(self, folder: Path | None, tool_use_id: str) -> None:
        self._folder = folder
        self._tool_use_id = tool_use_id
        self._start = bytearray()
        self._tail = bytearray()
        self._file: int | None = None
        self._path: Path | None = None
        self.size = 0

    def append(self, chunk: bytes) -> None:
        before, self.size = self.size, self.size + len(chunk)
        room = HEAD_BYTES_MAX + TAIL_BYTES_MAX - before
        self._start += chunk[: max(0, room)]
        self._tail = (self._tail + chunk)[-TAIL_BYTES_MAX:]
        if self.size <= HEAD_BYTES_MAX + TAIL_BYTES_MAX:
            return
        if before <= HEAD_BYTES_MAX + TAIL_BYTES_MAX:
            self._begin_file(bytes(self._start[:before]))
        self._write(chunk[: max(0, OUTPUT_FILE_BYTES_MAX - before)])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def text(self) -> str:
        if self.size <= HEAD_BYTES_MAX + TAIL_BYTES_MAX:
            return decode_text(bytes(self._start))
        head = decode_text(bytes(self._start[:HEAD_BYTES_MAX]), whole=False)
        # The tail may start within a UTF-8 sequence: drop its continuation bytes.
        tail = decode_text(bytes(self._tail).lstrip(bytes(range(0x80, 0xC0))))
        cut = self.size > OUTPUT_FILE_BYTES_MAX
        where = spill_note(self._path, self.size, cut=cut) if self._path else f"there were {self.size} bytes"
        return head + truncation_note(self.size - HEAD_BYTES_MAX - TAIL_BYTES_MAX, where, unit="bytes") + tail

    def _begin_file(self, printed: bytes) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._file, self._path = create_spill_file(self._folder, self._tool_use_id)
        self._write(printed)

    def _write(self, printed: bytes) -> None:
        if self._file is None:
            return
        try:
            while printed:
                printed = printed[os.write(self._file, printed) :]
        except OSError:
            # A full disk must not fail the command; its output is then only shown in part.
            self.close()
            self._path = None


def run_shell_command(order: CommandRequest, captured: CommandOutput, stop: Event) -> CommandExit:
    """Run a command until it ends or times out; then kill every process that it started and left behind."""
    child = subprocess.Popen(
        ("/bin/sh", "-c", order.command),
        cwd=order.folder,
        env=dict(order.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdout is not None
    with child.stdout as pipe:
        reader = _PipeReader(child.pid, pipe.fileno(), captured)
        try:
            ended = reader.until_exit(time.monotonic() + order.seconds_max, stop)
            if ended != "exited":
                _signal_group(child.pid, signal.SIGTERM)
                reader.until_exit(time.monotonic() + order.grace_seconds, Event())
        finally:
            # The child is not reaped yet, so its process group id cannot belong to another group.
            _signal_group(child.pid, signal.SIGKILL)
            reader.drain()
            reader.close()
            child.wait()
            captured.close()
    return CommandExit(ended, child.returncode)


class _PipeReader:
    """Reads what a process group prints until its leader has ended."""

    def __init__(self, pid: int, pipe: int, captured: CommandOutput) -> None:
        self._pid = pid
        self._pipe = pipe
        self._captured = captured
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)
        self._at_end = False

    def close(self) -> None:
        self._selector.close()

    def until_exit(self, deadline: float, stop: Event) -> CommandEnding:
        while not _has_ended(self._pid):
            if stop.is_set():
                return "stopped"
            if time.monotonic() >= deadline:
                return "timed_out"
            self._read(_POLL_SECONDS)
        return "exited"

    def drain(self) -> None:
        """Read what is left in the pipe, without waiting for processes that hold it open."""
        deadline = time.monotonic() + _DRAIN_SECONDS_MAX
        while self._read(_QUIET_SECONDS) and time.monotonic() < deadline:
            pass

    def _read(self, seconds: float) -> bool:
        """Read a chunk; return whether there was one within the time."""
        if self._at_end:
            time.sleep(_POLL_SECONDS / 4)
            return False
        if not self._selector.select(seconds):
            return False
        chunk = os.read(self._pipe, 65_536)
        if not chunk:
            self._at_end = True
            self._selector.unregister(self._pipe)
            return False
        self._captured.append(chunk)
        return True


def _has_ended(pid: int) -> bool:
    # WNOWAIT leaves the child unreaped: until it is reaped, no other process can get its id.
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # The host program ignores SIGCHLD, so that the system reaps its children.
        return True


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _result_text(ended: object, captured: CommandOutput, context: ToolContext) -> str:
    assert isinstance(ended, CommandExit)
    printed = captured.text()
    if ended.ending != "exited":
        context.success = False
        raise ToolError(f"{printed}\n[stopped: the time was up]".lstrip(), kind="timeout")
    if ended.code == 0:
        return printed
    context.success = False
    how = f"exit code {ended.code}" if ended.code > 0 else f"ended by signal {-ended.code}"
    return f"{printed.rstrip()}\n[{how}]".lstrip()
