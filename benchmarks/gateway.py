"""What the gateway adds to a call, beside LiteLLM's proxy, Portkey's gateway and nginx in the same run.

All forward to a minimal upstream in its own process. nginx reads none of what it forwards. A peer that cannot be
installed is skipped. Processor time per request is meaningful even on a busy machine.
"""

import asyncio
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks._gateway_ends import EVENTS, Pace, pace, requests_a_second, upstream
from benchmarks._proxies import (
    PEER_ERRORS,
    Proxy,
    cpu_seconds,
    explain_peer_error,
    start_holdfast,
    start_litellm,
    start_nginx,
    start_portkey,
)

STREAMS = 32
ROUNDS = 4
REPEATS = 3
REQUESTS = 2_000
PEER_REQUESTS = 300
PEERS = {"litellm": start_litellm, "portkey": start_portkey, "nginx": start_nginx}
MEMORY_REQUESTS = int(os.environ.get("HOLDFAST_GATEWAY_REQUESTS", "100000"))
PATH = "/anthropic/v1/messages"


class Measured(NamedTuple):
    rate: float
    cpu_ms_a_request: float
    streams: "Streams | str"
    """Or why there are none."""


class Streams(NamedTuple):
    pace: Pace
    cpu_ms_an_event: float


def run() -> Iterator[tuple[str, str]]:
    yield "machine", f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    with upstream() as port:
        direct = _typical(Proxy(port, os.getpid(), "/v1/messages"))
        direct_rate = asyncio.run(requests_a_second(port, "/v1/messages", clients=STREAMS, count=REQUESTS))
        yield "direct: requests a second", f"{direct_rate:.0f}"
        with start_holdfast(port) as gateway:
            ours = _measure(gateway, requests=REQUESTS)
        yield from _format_rows("gateway", ours, direct)
        yield from compare_with_peers(port, ours, direct)
        with start_holdfast(port) as gateway:
            yield from _memory(gateway.port, gateway.process)


def compare_with_peers(port: int, ours: Measured, direct: Pace) -> Iterator[tuple[str, str]]:
    for name, start in PEERS.items():
        try:
            with start(port) as peer:
                yield f"{name}: version", peer.version
                theirs = _measure(peer, requests=PEER_REQUESTS)
        except PEER_ERRORS as error:
            yield name, explain_peer_error(error)
            continue
        yield from _format_rows(name, theirs, direct)
        bar = " (5 at least)" if name == "litellm" else ""
        yield f"requests a second, gateway to {name}{bar}", f"{ours.rate / theirs.rate:.1f}"
        ratio = theirs.cpu_ms_a_request / ours.cpu_ms_a_request
        yield f"processor time a request, {name} to gateway", f"{ratio:.1f}"


def _format_rows(name: str, measured: Measured, direct: Pace) -> Iterator[tuple[str, str]]:
    bars = (" (less than 2)", " (less than 0.5)") if name == "gateway" else ("", "")
    yield f"{name}: requests a second", f"{measured.rate:.0f}"
    yield f"{name}: processor ms a request", f"{measured.cpu_ms_a_request:.2f}"
    if isinstance(measured.streams, str):
        yield f"{name}: streams", f"not measured: {measured.streams}"
        return
    first_ms, late_ms = measured.streams.pace.first_ms - direct.first_ms, measured.streams.pace.late_ms - direct.late_ms
    yield f"{name}: first byte, {STREAMS} streams, added ms, p50{bars[0]}", f"{first_ms:.2f}"
    yield f"{name}: an event, {STREAMS} streams, added ms, p50{bars[1]}", f"{late_ms:.2f}"
    yield f"{name}: processor ms an event", f"{measured.streams.cpu_ms_an_event:.3f}"


def _measure(proxy: Proxy, *, requests: int) -> Measured:
    at = (proxy.port, proxy.path, proxy.headers)
    asyncio.run(requests_a_second(*at, clients=4, count=40))
    before = cpu_seconds(proxy.process)
    rate = asyncio.run(requests_a_second(*at, clients=STREAMS, count=requests))
    between = cpu_seconds(proxy.process)
    request_ms = (between - before) / requests * 1000
    try:
        pace_of_streams = _typical(proxy)
    except RuntimeError as refused:
        # Of a peer that does not stream, the requests are measured.
        return Measured(rate, request_ms, str(refused).splitlines()[0])
    streams = (STREAMS * ROUNDS + 1) * REPEATS
    event_ms = max(0.0, (cpu_seconds(proxy.process) - between) / streams * 1000 - request_ms) / EVENTS
    return Measured(rate, request_ms, Streams(pace_of_streams, event_ms))


def _typical(proxy: Proxy) -> Pace:
    """Medians of several runs, because a single run on a busy machine measures the other load."""
    at = (proxy.port, proxy.path, proxy.headers)
    measured = [asyncio.run(pace(*at, streams=STREAMS, rounds=ROUNDS)) for _ in range(REPEATS)]
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
