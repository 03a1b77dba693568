"""Runs a command with limits on its time and output size, and hides this process's memory from other processes."""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec

from holdfast.clock import Clock

CommandEnd = Literal["exited", "cut", "timed_out", "not_started"]


class BoundedOutput(msgspec.Struct, frozen=True):
    """Standard output up to the limit. `cut`: there was more, and the exit code is unknown."""

    output: bytes
    end: CommandEnd
    exit_code: int | None = None


def run_bounded(
    command: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    *,
    seconds_max: float,
    bytes_max: int,
    monotonic: Clock = time.monotonic,
    input_chunks: Iterable[bytes] | None = None,
) -> BoundedOutput:
    """Never raises and never exceeds its limits: a command that still runs then is killed with all its children.

    `input_chunks` are written to its standard input by another thread, as the command reads it.
    """
    deadline = monotonic() + seconds_max
    try:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL if input_chunks is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # An own process group, so that children of the command can be killed with it.
            start_new_session=True,
        )
    except (OSError, ValueError):
        return BoundedOutput(b"", "not_started")
    assert child.stdout is not None
    if input_chunks is not None and child.stdin is not None:
        threading.Thread(
            target=_write_input, args=(child.stdin, input_chunks), name="holdfast-feed", daemon=True
        ).start()
    with child.stdout as pipe:
        try:
            output, ended = _read_until(pipe.fileno(), deadline, bytes_max, monotonic)
            if ended == "exited":
                child.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            ended = "timed_out"
        finally:
            if child.returncode is None:
                # The child has not been reaped, so its process group id cannot belong to another process yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return BoundedOutput(output[:bytes_max], ended, child.returncode if ended == "exited" else None)


def _write_input(pipe: IO[bytes], chunks: Iterable[bytes]) -> None:
    # A command may end without reading all of its input, which closes the pipe; that is no error.
    with contextlib.suppress(OSError, ValueError), pipe:
        for chunk in chunks:
            pipe.write(chunk)


def _read_until(pipe: int, deadline: float, bytes_max: int, monotonic: Clock) -> tuple[bytes, CommandEnd]:
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        # One byte beyond the limit is read, to tell a complete output from a cut one.
        while len(output) <= bytes_max:
            remaining = deadline - monotonic()
            if remaining <= 0 or not selector.select(remaining):
                return bytes(output), "timed_out"
            chunk = os.read(pipe, bytes_max + 1 - len(output))
            if not chunk:
                return bytes(output), "exited"
            output += chunk
    return bytes(output), "cut"


_PR_SET_DUMPABLE = 4  # From <linux/prctl.h>.


def hide_process_memory() -> bool:
    """Returns whether other processes of the same user can no longer read this one's environment or memory.

    Linux only, and no protection from root. It also disables core dumps and debuggers.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    return False
