"""What it costs to start `holdfast mcp` and the session-start hook, beside a minimal MCP server on the same SDK."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# The instructions are published in the same way as in the tests.
sys.path.insert(0, str(ROOT))

from tests.mcp.test_mcp import make_home  # noqa: E402

ROUNDS = 5
MCP_CPU_SECONDS_MAX = 0.7
MCP_WALL_SECONDS_MAX = 1.2
MCP_MEGABYTES_MAX = 110
HOOK_CPU_SECONDS_MAX = 0.4
_MINIMAL_SERVER = """
import asyncio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

async def list_tools(context, params):
    return types.ListToolsResult(tools=[])

async def main():
    server = Server("minimal", version="1", on_list_tools=list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
_EVENT = json.dumps({"hook_event_name": "SessionStart", "source": "startup"}).encode()


class Start(NamedTuple):
    cpu_seconds: float
    wall_seconds: float
    megabytes: float


def run() -> Iterator[tuple[str, str]]:
    """Medians of a few rounds, in turns, so that other work on the machine meets all of them."""
    if not Path("/proc/self/stat").exists():
        yield "startup", "not measured, CPU time and memory of a process are read from /proc"
        return
    with tempfile.TemporaryDirectory() as folder:
        environ = make_home(Path(folder)).environ
        holdfast = (sys.executable, "-m", "holdfast")
        rounds = [
            (
                start_server((sys.executable, "-c", _MINIMAL_SERVER), environ),
                start_server((*holdfast, "mcp"), environ),
                run_hook((*holdfast, "instructions", "hook"), environ),
            )
            # The first round writes bytecode and warms the page cache.
            for _ in range(ROUNDS + 1)
        ][1:]
    minimal, ours, hook = (_medians(starts) for starts in zip(*rounds, strict=True))
    yield "minimal MCP server to `initialize`, CPU s, wall s, MB", _format(minimal)
    yield "holdfast mcp to `initialize`, CPU s, wall s, MB", _format(ours)
    yield f"CPU under {MCP_CPU_SECONDS_MAX} s", _verdict(ours.cpu_seconds < MCP_CPU_SECONDS_MAX)
    yield f"wall at most {MCP_WALL_SECONDS_MAX} s", _verdict(ours.wall_seconds <= MCP_WALL_SECONDS_MAX)
    yield f"memory at most {MCP_MEGABYTES_MAX} MB", _verdict(ours.megabytes <= MCP_MEGABYTES_MAX)
    # Its memory is not shown: the peak that the kernel reports includes that of the process that forked it.
    yield "session-start hook, CPU s, wall s", f"{hook.cpu_seconds:.2f}, {hook.wall_seconds:.2f}"
    yield f"hook, CPU under {HOOK_CPU_SECONDS_MAX} s", _verdict(hook.cpu_seconds < HOOK_CPU_SECONDS_MAX)


def start_server(command: tuple[str, ...], environ: Mapping[str, str]) -> Start:
    """Start an MCP server and measure until it has answered `initialize`."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(_INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        wall_seconds = time.perf_counter() - started
        assert "result" in answer, answer
        # Fields 14 and 15 are user and system time in clock ticks; the name before them may contain spaces.
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        status = Path(f"/proc/{process.pid}/status").read_text()
        kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
        process.stdin.close()
    return Start(ticks / os.sysconf("SC_CLK_TCK"), wall_seconds, kilobytes / 1024)


def run_hook(command: tuple[str, ...], environ: Mapping[str, str]) -> Start:
    started = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(_EVENT)
        process.stdin.close()
        assert b"additionalContext" in process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_seconds = time.perf_counter() - started
    return Start(usage.ru_utime + usage.ru_stime, wall_seconds, 0)


def _medians(starts: tuple[Start, ...]) -> Start:
    return Start(*(statistics.median(figures) for figures in zip(*starts, strict=True)))


def _format(start: Start) -> str:
    return f"{start.cpu_seconds:.2f}, {start.wall_seconds:.2f}, {start.megabytes:.0f}"


def _verdict(is_met: bool) -> str:
    return "yes" if is_met else "NO"
