"""How much memory `holdfast serve` holds: its front and its recorder, after the start and after 1,000 calls."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from benchmarks._gateway_ends import requests_a_second, upstream
from benchmarks._proxies import child_processes, start_holdfast

FRONT_MEGABYTES_MAX = 120
CALLS = 1_000


def run() -> Iterator[tuple[str, str]]:
    if not Path("/proc/self/status").exists():
        yield "memory", "not measured, it is read from /proc"
        return
    with upstream(events=1, pause_seconds=0) as port, start_holdfast(port) as served:
        yield "after the start", _describe(served.process)
        asyncio.run(requests_a_second(served.port, served.path, clients=8, count=CALLS))
        yield f"after {CALLS:,} calls", _describe(served.process)
        is_met = read_megabytes(served.process) <= FRONT_MEGABYTES_MAX
        yield f"front at most {FRONT_MEGABYTES_MAX} MB", "yes" if is_met else "NO"


def _describe(process: int) -> str:
    recorders = ", ".join(f"{read_megabytes(child):.0f} MB" for child in child_processes(process))
    return f"front {read_megabytes(process):.0f} MB, recorder {recorders or 'not started'}"


def read_megabytes(process: int) -> float:
    """Resident memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
