"""What the gateway adds to a call, beside LiteLLM's proxy on the same machine in the same run.

An upstream of few lines is behind both, in a process of its own. LiteLLM is installed into an environment of its own,
in the folder that HOLDFAST_LITELLM names or in one for temporary files; where that fails, its rows are left out.
Processor time says what a busy machine hides: of one process, per request, whoever else is at work.
"""

import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks._gateway_ends import EVENTS, Pace, pace, requests_a_second, upstream

STREAMS = 32
ROUNDS = 4
REPEATS = 3
REQUESTS = 2_000
RIVAL_REQUESTS = 300
MEMORY_REQUESTS = int(os.environ.get("HOLDFAST_GATEWAY_REQUESTS", "100000"))
START_SECONDS_MAX = 120.0
PATH = "/anthropic/v1/messages"


class Measured(NamedTuple):
    pace: Pace
    rate: float
    cpu_ms_a_request: float
    cpu_ms_an_event: float


def run() -> Iterator[tuple[str, str]]:
    load = os.getloadavg()[0]
    yield "machine", f"{os.cpu_count()} processors, load {load:.1f}"
    with upstream() as port:
        direct = _typical(port, "/v1/messages")
        direct_rate = asyncio.run(requests_a_second(port, "/v1/messages", clients=STREAMS, count=REQUESTS))
        with _gateway(port) as (own, process):
            ours = _measured(own, process, requests=REQUESTS)
            yield from _told("gateway", ours, direct)
        with _litellm(port) as rival:
            theirs = _measured(rival[0], rival[1], requests=RIVAL_REQUESTS) if rival else None
        yield "direct: requests a second", f"{direct_rate:.0f}"
        if theirs is not None:
            yield from _told("litellm", theirs, direct)
            yield "requests a second, gateway to litellm (5 at least)", f"{ours.rate / theirs.rate:.1f}"
            ratio = theirs.cpu_ms_a_request / ours.cpu_ms_a_request
            yield "processor time a request, litellm to gateway", f"{ratio:.1f}"
        with _gateway(port) as (own, process):
            yield from _memory(own, process)


def _told(name: str, found: Measured, direct: Pace) -> Iterator[tuple[str, str]]:
    bars = (" (less than 2)", " (less than 0.5)") if name == "gateway" else ("", "")
    yield (
        f"{name}: first byte, {STREAMS} streams, added ms, p50{bars[0]}",
        f"{found.pace.first_ms - direct.first_ms:.2f}",
    )
    yield f"{name}: an event, {STREAMS} streams, added ms, p50{bars[1]}", f"{found.pace.late_ms - direct.late_ms:.2f}"
    yield f"{name}: requests a second", f"{found.rate:.0f}"
    yield f"{name}: processor ms a request", f"{found.cpu_ms_a_request:.2f}"
    yield f"{name}: processor ms an event", f"{found.cpu_ms_an_event:.3f}"


def _measured(port: int, process: int, *, requests: int) -> Measured:
    asyncio.run(requests_a_second(port, PATH, clients=4, count=40))
    before = _cpu_seconds(process)
    rate = asyncio.run(requests_a_second(port, PATH, clients=STREAMS, count=requests))
    between = _cpu_seconds(process)
    found = _typical(port, PATH)
    after = _cpu_seconds(process)
    streams = (STREAMS * ROUNDS + 1) * REPEATS
    request_ms = (between - before) / requests * 1000
    event_ms = max(0.0, (after - between) / streams * 1000 - request_ms) / EVENTS
    return Measured(found, rate, request_ms, event_ms)


def _typical(port: int, path: str) -> Pace:
    """Medians of several runs: one run on a machine that does something else tells of that."""
    found = [asyncio.run(pace(port, path, streams=STREAMS, rounds=ROUNDS)) for _ in range(REPEATS)]
    return Pace(statistics.median(one.first_ms for one in found), statistics.median(one.late_ms for one in found))


def _memory(port: int, process: int) -> Iterator[tuple[str, str]]:
    """What a tenth of the requests has filled stays; from then on nothing may grow."""
    tenth = MEMORY_REQUESTS // 10
    asyncio.run(requests_a_second(port, PATH, clients=STREAMS, count=tenth))
    early = _resident_mb(process)
    asyncio.run(requests_a_second(port, PATH, clients=STREAMS, count=MEMORY_REQUESTS - tenth))
    late = _resident_mb(process)
    yield f"memory after {tenth:,} requests", f"{early:.1f} MB"
    yield f"memory after {MEMORY_REQUESTS:,} requests", f"{late:.1f} MB ({(late / early - 1) * 100:+.1f} %)"


@contextmanager
def _gateway(port: int) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["serve", "--port", "0", "--db", str(Path(folder) / "s.db")]
        words += ["--upstream", f"anthropic=http://127.0.0.1:{port}"]
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline().rpartition(":")[2]), process.pid
            finally:
                process.terminate()


@contextmanager
def _litellm(port: int) -> Iterator[tuple[int, int] | None]:
    """LiteLLM's proxy, whose route to Anthropic passes requests through as they are; None where there is none."""
    program = _installed()
    if program is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    environ = {**os.environ, "ANTHROPIC_API_BASE": f"http://127.0.0.1:{port}", "ANTHROPIC_API_KEY": "any"}
    # It would not start without a key of its own, and to look that up with each request would be held against it.
    environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        words = [str(program), "--host", "127.0.0.1", "--port", str(own), "--telemetry", "False"]
        with subprocess.Popen(
            words, env=environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield (own, process.pid) if _answers(own) else None
            finally:
                process.terminate()


def _installed() -> Path | None:
    folder = Path(os.environ.get("HOLDFAST_LITELLM") or Path(tempfile.gettempdir()) / "holdfast-litellm")
    program = folder / "bin" / "litellm"
    if not program.exists():
        venv.create(folder, with_pip=True)
        words = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "litellm[proxy]"]
        if subprocess.run(words, check=False, capture_output=True).returncode:
            return None
    return program


def _answers(port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    return False


def _cpu_seconds(process: int) -> float:
    """Of the process that answers; not of one that records beside it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(process: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
