"""What a command prints, within bounds of time and size."""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec

from holdfast.clock import Clock

Ended = Literal["exited", "cut", "timed_out", "not_started"]


class Printed(msgspec.Struct, frozen=True):
    """Standard output up to the bound. `cut`: there was more of it; the exit code is then not known."""

    output: bytes
    ended: Ended
    exit_code: int | None = None


def run_bounded(
    command: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    *,
    seconds_max: float,
    bytes_max: int,
    monotonic: Clock = time.monotonic,
    fed: Iterable[bytes] | None = None,
) -> Printed:
    """Never raises and never outlives its bounds: what still runs then is killed, with all it started.

    What it is `fed` comes on its standard input, asked for in another thread as the command reads it.
    """
    deadline = monotonic() + seconds_max
    try:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL if fed is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return Printed(b"", "not_started")
    assert child.stdout is not None
    if fed is not None and child.stdin is not None:
        threading.Thread(target=_feed, args=(child.stdin, fed), name="holdfast-feed", daemon=True).start()
    with child.stdout as pipe:
        try:
            output, ended = _read_until(pipe.fileno(), deadline, bytes_max, monotonic)
            if ended == "exited":
                child.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            ended = "timed_out"
        finally:
            if child.returncode is None:
                # Not yet waited for, so the number of the group is still its own.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return Printed(output[:bytes_max], ended, child.returncode if ended == "exited" else None)


def _feed(pipe: IO[bytes], fed: Iterable[bytes]) -> None:
    # A command that ends before it has read everything closes the pipe: nothing is wrong with that.
    with contextlib.suppress(OSError, ValueError), pipe:
        for part in fed:
            pipe.write(part)


def _read_until(pipe: int, deadline: float, bytes_max: int, monotonic: Clock) -> tuple[bytes, Ended]:
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(output) <= bytes_max:
            left = deadline - monotonic()
            if left <= 0 or not selector.select(left):
                return bytes(output), "timed_out"
            chunk = os.read(pipe, bytes_max + 1 - len(output))
            if not chunk:
                return bytes(output), "exited"
            output += chunk
    return bytes(output), "cut"
