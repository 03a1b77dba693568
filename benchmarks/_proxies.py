"""Gateways to compare: ours, Portkey's and LiteLLM's, each in a process of its own in front of one Anthropic upstream.

The others are installed from npm and PyPI into environments of their own below `build/`.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from conformance.client import InstallationFailed, install_packages

FOLDER = Path(__file__).resolve().parents[1] / "build" / "gateways"
PORTKEY = ("@portkey-ai/gateway", "1.15.2")
LITELLM = ("litellm[proxy]", "1.106.2")
START_SECONDS_MAX = 120.0


class Proxy(msgspec.Struct, frozen=True):
    """A running gateway: where it accepts Anthropic's requests, and the process that serves them."""

    port: int
    process: int
    path: str = "/anthropic/v1/messages"
    headers: Mapping[str, str] = {}


@contextmanager
def start_holdfast(upstream_port: int, *options: str) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["serve", "--port", "0", "--db", str(Path(folder) / "s.db"), *options]
        arguments += ["--upstream", f"anthropic=http://127.0.0.1:{upstream_port}"]
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield Proxy(int(process.stdout.readline().rpartition(":")[2]), process.pid)
            finally:
                process.terminate()


@contextmanager
def start_portkey(upstream_port: int) -> Iterator[Proxy]:
    """Portkey's gateway; raises InstallationFailed where it cannot be had."""
    folder = FOLDER / "portkey"
    install_packages(folder, "npm", (PORTKEY,))
    port = _free_port()
    program = folder / "node_modules" / PORTKEY[0] / "build" / "start-server.js"
    headers = {
        "x-portkey-provider": "anthropic",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
        "authorization": "Bearer any",
    }
    # Headless and in production it neither logs requests nor serves its console.
    command = ["node", str(program), f"--port={port}", "--headless"]
    with _start(command, {"NODE_ENV": "production"}) as process:
        _wait_until_it_answers(process, f"http://127.0.0.1:{port}/")
        yield Proxy(port, process.pid, "/v1/messages", headers)


@contextmanager
def start_litellm(upstream_port: int) -> Iterator[Proxy]:
    """LiteLLM's proxy, whose route to Anthropic passes requests through unchanged; raises InstallationFailed."""
    folder = FOLDER / "litellm"
    install_packages(folder, "pypi", (LITELLM,))
    port = _free_port()
    environment = {
        "ANTHROPIC_API_BASE": f"http://127.0.0.1:{upstream_port}",
        "ANTHROPIC_API_KEY": "any",
        # It does not start without a master key, and looking that up in each request would be an unfair cost.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    command = [str(folder / "bin" / "litellm"), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with _start(command, environment) as process:
        _wait_until_it_answers(process, f"http://127.0.0.1:{port}/health/liveliness")
        yield Proxy(port, process.pid)


def cpu_seconds(process: int) -> float:
    """User and system time of one process, without its children: ours records in another process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def child_processes(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@contextmanager
def _start(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(environment)
    quiet = subprocess.DEVNULL
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, env=environ, cwd=folder, stdout=quiet, stderr=quiet) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.5)
    raise InstallationFailed(f"it did not answer within {START_SECONDS_MAX:.0f} s")
