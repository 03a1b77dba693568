"""Several processes that serve one port: each is a whole `holdfast serve`, and one that ends is started again.

They share the listening socket, so that connections which wait to be accepted survive the end of any of them, and what
they know through the store, as replicas on several machines do.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from holdfast.service.context import AppContext

STATUS_SECONDS = 1.0
SILENT_SECONDS_MAX = 10.0
"""A worker that has not written its status for this long does not answer."""

RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.05, 5.0
STABLE_SECONDS = 10.0
"""A worker that ran for this long did not fail at once; the pause before the next start is short again."""

CLOSING_SECONDS_MAX = 30.0
"""More than a worker waits for its connections and its recorder."""


class WorkerPlace(msgspec.Struct, frozen=True):
    """Which worker a process is, the descriptor of the shared socket, and the folder where each writes its status."""

    number: int
    count: int
    descriptor: int
    folder: str

    def find_status(self, number: int) -> Path:
        return Path(self.folder) / f"{number}.json"


class WorkerStatus(msgspec.Struct, frozen=True):
    """`reasons` say why a worker is degraded; `metrics` are its own."""

    at: float
    reasons: tuple[str, ...]
    metrics: tuple[str, ...]


def parse_place(text: str) -> WorkerPlace:
    return msgspec.json.decode(text, type=WorkerPlace)


def open_shared_socket(place: WorkerPlace) -> socket.socket:
    return socket.socket(fileno=place.descriptor)


def run_workers(count: int, bound: socket.socket, on_ready: Callable[[], None]) -> int:
    """Runs workers until a signal, and returns the exit status: that of a worker that could not start at all."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="holdfast-workers-") as folder:
        places = [WorkerPlace(number, count, bound.fileno(), folder) for number in range(count)]
        workers = [_Worker(place, stop) for place in places]
        try:
            for worker in workers:
                # One after the other: the first may have to create or upgrade the store.
                worker.start()
                while not worker.started.wait(0.1) and not stop.is_set():
                    pass
            if not stop.is_set():
                on_ready()
                # With a timeout, so that a signal is handled at once on every system.
                while not stop.wait(1.0):
                    pass
        finally:
            stop.set()
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()
    return next((worker.exit_status for worker in workers if worker.exit_status), 0)


class _Worker:
    """Supervises one worker from a thread."""

    def __init__(self, place: WorkerPlace, stop: threading.Event) -> None:
        self._place, self._stop = place, stop
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"holdfast-worker-{place.number}", daemon=True)
        self.started = threading.Event()
        self.exit_status = 0

    def start(self) -> None:
        self._thread.start()

    def terminate(self) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS_MAX)
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _supervise(self) -> None:
        pause = RESTART_SECONDS_MIN
        while not self._stop.is_set():
            try:
                process = self._start()
            except OSError as error:
                # As when processes or descriptors have run out, which passes.
                click.echo(f"worker {self._place.number} cannot be started: {error.strerror}", err=True)
                if not self.started.is_set():
                    self.exit_status = 1
                    self._stop.set()
                self._stop.wait(pause)
                pause = min(2 * pause, RESTART_SECONDS_MAX)
                continue
            if process is None:
                return
            began = time.monotonic()
            assert process.stdout is not None
            assert process.stdin is not None
            with process.stdout, process.stdin:
                if process.stdout.readline():
                    self.started.set()
                status = process.wait()
            self._place.find_status(self._place.number).unlink(missing_ok=True)
            if self._stop.is_set():
                return
            if not self.started.is_set():
                # It has said why, and the others would fail alike.
                self.exit_status = status or 1
                self._stop.set()
                return
            is_stable = time.monotonic() - began > STABLE_SECONDS
            pause = RESTART_SECONDS_MIN if is_stable else min(2 * pause, RESTART_SECONDS_MAX)
            click.echo(f"worker {self._place.number} ended with status {status} and is started again", err=True)
            self._stop.wait(pause)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        """None once the workers are to stop."""
        with self._lock:
            if self._stop.is_set():
                return None
            place = msgspec.json.encode(self._place).decode()
            self._process = subprocess.Popen(
                # -P: do not import modules from the working directory.
                [sys.executable, "-P", "-m", "holdfast", *sys.argv[1:], "--worker", place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._place.descriptor,),
            )
            return self._process


@contextlib.contextmanager
def report_status(place: WorkerPlace, service: AppContext) -> Iterator[None]:
    """Lets `/readyz` and `/metrics` of each worker answer for all; ends this one when its supervisor has ended."""
    service.request_metrics.labels = {"worker": str(place.number)}
    own_warnings, ended = tuple(service.warnings), threading.Event()
    others = [number for number in range(place.count) if number != place.number]

    def write_status() -> None:
        unfinished = Path(place.folder) / f"{place.number}.new"
        reasons = tuple(reason for reason in (warning() for warning in own_warnings) if reason)
        status = WorkerStatus(time.time(), reasons, tuple(service.request_metrics.format_lines()))
        # The folder is gone once the supervisor is.
        with contextlib.suppress(OSError):
            unfinished.write_bytes(msgspec.json.encode(status))
            unfinished.replace(place.find_status(place.number))

    def write_repeatedly() -> None:
        while not ended.wait(STATUS_SECONDS):
            write_status()

    def describe_others() -> str:
        return "; ".join(f"worker {number} {reason}" for number in others for reason in _find_reasons(place, number))

    def read_other_metrics() -> list[tuple[str, ...]]:
        return [status.metrics for number in others if (status := _read_status(place, number)) is not None]

    write_status()
    service.warnings.append(describe_others)
    service.read_other_metrics = read_other_metrics
    for target in (write_repeatedly, _end_with_supervisor):
        threading.Thread(target=target, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _find_reasons(place: WorkerPlace, number: int) -> tuple[str, ...]:
    status = _read_status(place, number)
    if status is None:
        return ("is not running",)
    if time.time() - status.at > SILENT_SECONDS_MAX:
        return ("does not answer",)
    return tuple(f"is degraded: {reason}" for reason in status.reasons)


def _read_status(place: WorkerPlace, number: int) -> WorkerStatus | None:
    try:
        return msgspec.json.decode(place.find_status(number).read_bytes(), type=WorkerStatus)
    except (OSError, msgspec.MsgspecError):
        return None


def _end_with_supervisor() -> None:
    """The supervisor never writes: its end of the pipe is closed when it ends, however it does."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
