"""Gateways to compare: ours, Portkey's, LiteLLM's and nginx, each in its own process before one Anthropic upstream.

Portkey's and LiteLLM's are installed from npm and PyPI into environments of their own below `build/`. nginx is that of
the machine, or else the package of a Debian, unpacked there.
"""

import http.client
import os
import shutil
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
from typing import Literal

import msgspec
from conformance.client import InstallationFailed, install_packages

from benchmarks._packages import LEFT_OUT, MEASURES_PEERS

FOLDER = Path(__file__).resolve().parents[1] / "build" / "gateways"
PORTKEY = ("@portkey-ai/gateway", "1.15.2")
# With later versions of the server that it takes, Portkey's gateway answers each stream with status 500: it adds to
# headers that they do not copy any more. The newest WebSockets would need a later one.
PORTKEY_SERVER = (("@hono/node-server", "1.13.8"), ("@hono/node-ws", "1.2.0"))
LITELLM = ("litellm[proxy]", "1.106.2")
START_SECONDS_MAX = 300.0
DOWNLOAD_SECONDS_MAX = 120.0
PEER_ERRORS = (InstallationFailed, RuntimeError, OSError, EOFError, http.client.HTTPException)
"""A peer that cannot be installed, refuses a request or breaks off is not measured, and the others are."""

# Responses are streamed, connections to the upstream are reused, and no request is logged, as with the others.
_NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/responses;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 2m;
    client_max_body_size 32m;
    upstream provider {{ server 127.0.0.1:{upstream_port}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location /anthropic/ {{
            proxy_pass http://provider/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


class Proxy(msgspec.Struct, frozen=True):
    """A running gateway: where it accepts Anthropic's requests, and the process that serves them."""

    port: int
    process: int
    path: str = "/anthropic/v1/messages"
    headers: Mapping[str, str] = {}
    version: str = ""


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
    folder = _install("portkey", "npm", PORTKEY, *PORTKEY_SERVER)
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
        yield Proxy(port, process.pid, "/v1/messages", headers, PORTKEY[1])


@contextmanager
def start_litellm(upstream_port: int) -> Iterator[Proxy]:
    """LiteLLM's proxy, whose route to Anthropic passes requests through unchanged; raises InstallationFailed."""
    folder = _install("litellm", "pypi", LITELLM)
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
        yield Proxy(port, process.pid, version=LITELLM[1])


@contextmanager
def start_nginx(upstream_port: int) -> Iterator[Proxy]:
    """nginx as a reverse proxy with one worker, which forwards bytes and reads none of them; raises InstallationFailed.

    It is the floor of what a gateway can cost.
    """
    if not MEASURES_PEERS:
        raise InstallationFailed(LEFT_OUT)
    program = _find_nginx(FOLDER / "nginx")
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "nginx.conf"
        settings.write_text(_NGINX.format(folder=folder, port=port, upstream_port=upstream_port))
        with _start([program, "-p", folder, "-e", "stderr", "-c", str(settings)], {}) as process:
            _wait_until_it_answers(process, f"http://127.0.0.1:{port}/")
            about = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
            yield Proxy(port, process.pid, version=about.strip().rpartition("/")[2])


def _find_nginx(folder: Path) -> str:
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:{folder}/usr/sbin"
    if not shutil.which("nginx", path=places):
        folder.mkdir(parents=True, exist_ok=True)
        for command in (["apt-get", "-qq", "download", "nginx"], ["sh", "-c", "dpkg -x nginx_*.deb ."]):
            try:
                subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=DOWNLOAD_SECONDS_MAX)
            except (OSError, subprocess.SubprocessError) as error:
                raise InstallationFailed("nginx is not installed, and no package of it can be unpacked") from error
    program = shutil.which("nginx", path=places)
    if not program:
        raise InstallationFailed("nginx is not installed, and its package has no program")
    return program


def _install(name: str, registry: Literal["npm", "pypi"], *packages: tuple[str, str]) -> Path:
    if not MEASURES_PEERS:
        raise InstallationFailed(LEFT_OUT)
    install_packages(FOLDER / name, registry, packages)
    return FOLDER / name


def explain_peer_error(error: Exception) -> str:
    """Why a peer has no figures, for its row."""
    return f"not measured: {(str(error).splitlines() or [type(error).__name__])[0]}"


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
