"""What the gateway adds to a call, compared with LiteLLM's proxy on the same machine in the same run.

Both forward to a minimal upstream in its own process. LiteLLM is installed into an environment of its own; if that
fails, its rows are skipped. Processor time per request is meaningful even on a busy machine.
"""

import asyncio
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conformance.client import InstallationFailed

from benchmarks._gateway_ends import EVENTS, Pace, pace, requests_a_second, upstream
from benchmarks._proxies import cpu_seconds, start_holdfast, start_litellm

STREAMS = 32
ROUNDS = 4
REPEATS = 3
REQUESTS = 2_000
RIVAL_REQUESTS = 300
MEMORY_REQUESTS = int(os.environ.get("HOLDFAST_GATEWAY_REQUESTS", "100000"))
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
        with start_holdfast(port) as gateway:
            ours = _measure(gateway.port, gateway.process, requests=REQUESTS)
            yield from _format_rows("gateway", ours, direct)
        yield "direct: requests a second", f"{direct_rate:.0f}"
        try:
            with start_litellm(port) as rival:
                theirs = _measure(rival.port, rival.process, requests=RIVAL_REQUESTS)
        except InstallationFailed as error:
            yield "litellm", f"not measured: {error}"
        else:
            yield from _format_rows("litellm", theirs, direct)
            yield "requests a second, gateway to litellm (5 at least)", f"{ours.rate / theirs.rate:.1f}"
            ratio = theirs.cpu_ms_a_request / ours.cpu_ms_a_request
            yield "processor time a request, litellm to gateway", f"{ratio:.1f}"
        with start_holdfast(port) as gateway:
            yield from _memory(gateway.port, gateway.process)


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
    before = cpu_seconds(process)
    rate = asyncio.run(requests_a_second(port, PATH, clients=STREAMS, count=requests))
    between = cpu_seconds(process)
    measured = _typical(port, PATH)
    after = cpu_seconds(process)
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


def _resident_mb(process: int) -> float:
    measured = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(measured[1]) / 1024 if measured else 0.0
