"""Where the simulation takes the place of the operating system: threads, time, ids, disk, store, pipes and processes.

Everything else in a run is production code. A seam that no longer exists fails when the simulation starts.
"""

import concurrent.futures
import errno
import fcntl
import functools
import itertools
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Literal
from unittest.mock import patch

from tests.simulation.machine import (
    Machine,
    Process,
    SimulatedCondition,
    SimulatedEvent,
    SimulatedExecutor,
    SimulatedLoop,
    SimulatedThread,
    current,
)

from holdfast import clock
from holdfast.cli.serve import gateway as gateway_command
from holdfast.cli.serve import recorder_process
from holdfast.gateway import auth, key_limits
from holdfast.gateway.recording import spool, spool_recorder, worker_process
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.write import queue as write_queue

CommitFault = Literal["fails", "fails after it took effect", "kills its process", "kills its process afterwards"]
DISK_SECONDS = 0.008
STORE_SECONDS = 0.002


class Faults:
    """What is broken at the moment."""

    def __init__(self) -> None:
        self.is_disk_full = False
        self.is_store_down = False
        self.store_seconds = STORE_SECONDS
        self.commits: deque[CommitFault] = deque()
        self.is_provider_down = False


class Seams:
    """The simulated operating system of one machine."""

    def __init__(self, machine: Machine, faults: Faults) -> None:
        self.machine, self.faults = machine, faults
        self._ids = itertools.count(100)
        self.synced_bytes: dict[int, int] = {}
        self.segment_bytes_max = machine.random.choice((4_000, 20_000, spool.SEGMENT_BYTES_MAX))

    def draw_delay(self) -> float:
        """Of a job in a thread pool, which asks the store."""
        return self.machine.random.uniform(0.2, 2.0) * self.faults.store_seconds

    # Files

    def write(self, file: int, data: bytes) -> int:
        if self.faults.is_disk_full:
            # A full disk takes part of what it is given.
            part = self.machine.random.randrange(len(data))
            if part and self.machine.random.random() < 0.5:
                return os.write(file, data[:part])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data)

    def sync(self, file: int) -> None:
        size = os.fstat(file).st_size
        self.machine.sleep(self.machine.random.uniform(0.1, 2.0) * DISK_SECONDS)
        if self.faults.is_disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.synced_bytes[os.fstat(file).st_ino] = size

    def read_synced(self, path: Path) -> bytes:
        """What of a file a power failure would leave."""
        return path.read_bytes()[: self.synced_bytes.get(path.stat().st_ino, 0)]

    # The store

    def connect_sqlite(self, path: Path, mode: str, *, busy_seconds_max: float) -> sqlite3.Connection:
        if self.faults.is_store_down:
            raise _make_store_error()
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_seconds_max,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        connection.seams = self
        return connection

    def run_statement(self, run: Callable[[], sqlite3.Cursor], statement: str) -> sqlite3.Cursor:
        if statement == "BEGIN IMMEDIATE":
            if current().name == "holdfast-store-writer":
                self.machine.sleep(self.machine.random.uniform(0.5, 2.0) * self.faults.store_seconds)
            if self.faults.is_store_down:
                raise _make_store_error()
        if statement != "COMMIT" or not self.faults.commits or current().process.name == "world":
            return run()
        fault = self.faults.commits.popleft()
        self.machine.note(f"a commit of {current().process.name} {fault}")
        if fault in ("fails after it took effect", "kills its process afterwards"):
            run()
        else:
            run.args[0].rollback()  # type: ignore[attr-defined]
        if fault in ("kills its process", "kills its process afterwards"):
            current().process.kill_from_inside()
        raise _make_store_error()

    # Processes

    def start_process(self, arguments: Sequence[str], **_: object) -> "SimulatedChild":
        parent = current().process
        name = f"recorder {next(self._ids)}"
        self.machine.note(f"{parent.name} starts {name}")
        process = Process(self.machine, name, recorder_process.run_recorder)
        parent.children.append(process)
        return SimulatedChild(process)

    def select(self, readers: Sequence[int], _: object, __: object, seconds: float) -> tuple[list[int], ...]:
        is_readable = current().process.stdin.wait_until_readable(seconds)
        return (list(readers) if is_readable else [], [], [])

    def decode_spool_message(self, payload: bytes) -> Any:
        """A recorder may be killed between any two frames."""
        self.machine.sleep(self.machine.random.uniform(0.0, 0.002))
        return worker_process.decode_spool_message(payload)


class _Connection(sqlite3.Connection):
    seams: Seams

    def execute(self, statement: str, cells: Any = (), /) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA synchronous"):
            # What was written survives the end of a process without it, and power failures are not simulated.
            statement = "PRAGMA synchronous = OFF"
        run = functools.partial(sqlite3.Connection.execute, self, statement, cells)
        if statement not in ("BEGIN IMMEDIATE", "COMMIT"):
            return run()
        return self.seams.run_statement(run, statement)


def _make_store_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("simulated")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


class SimulatedChild:
    """A process as `subprocess.Popen` shows it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.stdin, self.stdout = process.stdin, process.stdout
        process.on_end.append(lambda: process.machine.note(f"{process.name} ended"))

    def wait(self, timeout: float | None = None) -> int:
        if not self._process.wait(timeout):
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return 0

    def kill(self) -> None:
        self._process.kill()


class _Module(types.SimpleNamespace):
    """A module with some names replaced."""

    def __init__(self, original: object, **replaced: object) -> None:
        super().__init__(**replaced)
        self._original = original

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


class _Streams:
    """`sys.stdin` and `sys.stdout` of the current process."""

    @property
    def stdin(self) -> object:
        return types.SimpleNamespace(buffer=current().process.stdin)

    @property
    def stdout(self) -> object:
        return types.SimpleNamespace(buffer=current().process.stdout)


@contextmanager
def replace_seams(seams: Seams) -> Iterator[None]:
    """Production code runs on the simulated machine inside of the block."""
    machine = seams.machine
    simulated_threading = _Module(threading, Thread=SimulatedThread, Condition=SimulatedCondition, Event=SimulatedEvent)
    simulated_time = _Module(time, monotonic=lambda: machine.now, sleep=machine.sleep, time=machine.read_wall_clock)
    ids = machine.random.randbytes
    replaced: list[tuple[object, str, object]] = [
        (clock, "time", simulated_time),
        (clock.new_ulid, "_random_bytes", ids),
        (clock.new_ulid, "_last", -1),
        (concurrent.futures._base, "threading", simulated_threading),
        (write_queue, "threading", simulated_threading),
        (spool, "Thread", SimulatedThread),
        (spool, "Condition", SimulatedCondition),
        (spool, "time", simulated_time),
        (spool, "os", _Module(os, write=seams.write, fdatasync=seams.sync, fsync=lambda file: None)),
        (spool, "fcntl", _Module(fcntl, flock=_bind_lock())),
        (spool_recorder, "decode_spool_message", seams.decode_spool_message),
        (worker_process, "Thread", SimulatedThread),
        (worker_process, "Event", SimulatedEvent),
        (worker_process, "Condition", SimulatedCondition),
        (worker_process, "time", simulated_time),
        (worker_process, "os", _Module(os, write=lambda pipe, data: pipe.write(data), set_blocking=_ignore)),
        (worker_process, "subprocess", _Module(subprocess, Popen=seams.start_process)),
        (recorder_process, "time", simulated_time),
        (recorder_process, "BufferedRandomBytes", lambda: ids),
        (recorder_process, "os", _Module(os, nice=_ignore, read=lambda _, size: current().process.stdin.take(size))),
        (recorder_process, "select", types.SimpleNamespace(select=seams.select)),
        (recorder_process, "signal", _Module(signal, signal=_ignore)),
        (recorder_process, "sys", _Streams()),
        # It would keep what killed processes leave in cycles, with their files, until the whole simulation ends.
        (
            recorder_process,
            "gc",
            types.SimpleNamespace(freeze=_ignore, set_threshold=_ignore, get_threshold=lambda: (0,)),
        ),
        (auth, "ThreadPoolExecutor", functools.partial(SimulatedExecutor, delay=seams.draw_delay)),
        (key_limits, "ThreadPoolExecutor", functools.partial(SimulatedExecutor, delay=seams.draw_delay)),
        (sqlite_file, "connect_sqlite", seams.connect_sqlite),
        (gateway_command, "secrets", types.SimpleNamespace(token_bytes=lambda size: bytes(size))),
        (gateway_command, "gc", types.SimpleNamespace(freeze=_ignore)),
        (gateway_command, "sys", _Module(sys, setswitchinterval=_ignore)),
        (gateway_command, "logging", types.SimpleNamespace(getLogger=lambda _: _Module(None, addFilter=_ignore))),
    ]
    segments = {"segment_bytes_max": seams.segment_bytes_max}
    logging.disable(logging.CRITICAL)
    try:
        with ExitStack() as stack:
            for owner, name, value in replaced:
                stack.enter_context(patch.object(owner, name, value))
            stack.enter_context(patch.dict(spool.SpoolWriter.__init__.__kwdefaults__, segments))
            # Coroutines of killed processes are never finished.
            stack.enter_context(patch.object(sys, "unraisablehook", _ignore))
            yield
    finally:
        logging.disable(logging.NOTSET)


def _bind_lock() -> Callable[[IO[bytes], int], None]:
    flock = fcntl.flock

    def lock(file: IO[bytes], operation: int) -> None:
        flock(file, operation)
        current().process.locks.append(file)

    return lock


def _ignore(*_: object) -> None:
    pass


def make_loop(seams: Seams, process: Process, connect: Any) -> SimulatedLoop:
    return SimulatedLoop(process, SimulatedExecutor(delay=seams.draw_delay), connect)
