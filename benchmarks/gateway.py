"""What the gateway adds to a call, compared with LiteLLM's proxy on the same machine in the same run.

Both forward to a minimal upstream in its own process. LiteLLM is installed into its own environment, in the folder that
HOLDFAST_LITELLM names or in a temporary one; if that fails, its rows are skipped. Processor time per request is
meaningful even on a busy machine.
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
        with _gateway(port) as (gateway_port, process):
            ours = _measure(gateway_port, process, requests=REQUESTS)
            yield from _format_rows("gateway", ours, direct)
        with _litellm(port) as rival:
            theirs = _measure(rival[0], rival[1], requests=RIVAL_REQUESTS) if rival else None
        yield "direct: requests a second", f"{direct_rate:.0f}"
        if theirs is not None:
            yield from _format_rows("litellm", theirs, direct)
            yield "requests a second, gateway to litellm (5 at least)", f"{ours.rate / theirs.rate:.1f}"
            ratio = theirs.cpu_ms_a_request / ours.cpu_ms_a_request
            yield "processor time a request, litellm to gateway", f"{ratio:.1f}"
        with _gateway(port) as (gateway_port, process):
            yield from _memory(gateway_port, process)


def _format_rows(name: str, measured: Measured, direct: Pace) -> Iterator[tuple[str, str]]:
    bars = (" (less than 2)", " (less than 0.5)") if name == "gateway" else ("", "")
    yield (
        f"{name}: first byte, {STREAMS} streams, added ms, p50{bars[0]}",
        f"{measured.pace.first_ms - direct.first_ms:.2f}",
    )
    yield (
        f"{name}: an event, {STREAMS} streams, added ms, p50{bars[1]}",
        f"{measured.pace.late_ms - direct.late_ms:.2f}",
    )
    yield f"{name}: requests a second", f"{measured.rate:.0f}"
    yield f"{name}: processor ms a request", f"{measured.cpu_ms_a_request:.2f}"
    yield f"{name}: processor ms an event", f"{measured.cpu_ms_an_event:.3f}"


def _measure(port: int, process: int, *, requests: int) -> Measured:
    asyncio.run(requests_a_second(port, PATH, clients=4, count=40))
    before = _cpu_seconds(process)
    rate = asyncio.run(requests_a_second(port, PATH, clients=STREAMS, count=requests))
    between = _cpu_seconds(process)
    measured = _typical(port, PATH)
    after = _cpu_seconds(process)
    streams = (STREAMS * ROUNDS + 1) * REPEATS
    request_ms = (between - before) / requests * 1000
    event_ms = max(0.0, (after - between) / streams * 1000 - request_ms) / EVENTS
    return Measured(measured, rate, request_ms, event_ms)


def _typical(port: int, path: str) -> Pace:
    """Medians of several runs, because a single run on a busy machine measures the other load."""
    measured = [asyncio.run(pace(port, path, streams=STREAMS, rounds=ROUNDS)) for _ in range(REPEATS)]
    return Pace(
        statistics.median(run_pace.first_ms for run_pace in measured),
        statistics.median(run_pace.late_ms for run_pace in measured),
    )


def _memory(port: int, process: int) -> Iterator[tuple[str, str]]:
    """Caches and pools fill during the first tenth of the requests; after that, memory must not grow."""
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
        arguments = ["serve", "--port", "0", "--db", str(Path(folder) / "s.db")]
        arguments += ["--upstream", f"anthropic=http://127.0.0.1:{port}"]
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline().rpartition(":")[2]), process.pid
            finally:
                process.terminate()


@contextmanager
def _litellm(port: int) -> Iterator[tuple[int, int] | None]:
    """LiteLLM's proxy, whose route to Anthropic passes requests through unchanged; None if it is not available."""
    program = _installed()
    if program is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        gateway_port = free.getsockname()[1]
    environ = {**os.environ, "ANTHROPIC_API_BASE": f"http://127.0.0.1:{port}", "ANTHROPIC_API_KEY": "any"}
    # It does not start without a master key, and looking that up in each request would be an unfair cost.
    environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(program), "--host", "127.0.0.1", "--port", str(gateway_port), "--telemetry", "False"]
        with subprocess.Popen(
            arguments, env=environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield (gateway_port, process.pid) if _answers(gateway_port) else None
            finally:
                process.terminate()


def _installed() -> Path | None:
    folder = Path(os.environ.get("HOLDFAST_LITELLM") or Path(tempfile.gettempdir()) / "holdfast-litellm")
    program = folder / "bin" / "litellm"
    if not program.exists():
        venv.create(folder, with_pip=True)
        arguments = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "litellm[proxy]"]
        if subprocess.run(arguments, check=False, capture_output=True).returncode:
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
    """Of the process that serves requests, without the recorder process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(process: int) -> float:
    measured = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(measured[1]) / 1024 if measured else 0.0
