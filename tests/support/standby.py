"""A PostgreSQL server with a synchronous standby that can be promoted: two real servers with streaming replication."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

import psycopg
from tests.support.postgres_server import UNPRIVILEGED_ID, find_programs, run

START_SECONDS_MAX = 60.0
SETTINGS = ("listen_addresses=127.0.0.1", "max_connections=60", "shared_buffers=16MB", "fsync=off")


class ReplicatedServer:
    """`url` names both servers; a client that wants to write finds the one that is the primary."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._programs = folder, find_programs(folder)
        self._ports = [_find_free_port(), _find_free_port()]
        primary, standby = folder / "primary", folder / "standby"
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, UNPRIVILEGED_ID, UNPRIVILEGED_ID, follow_symlinks=False)
        self._run(
            "initdb", "-D", primary, "-U", "holdfast", "-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync"
        )
        self.primary = self._start(primary, 0)
        self._wait_for(0)
        source = f"host=127.0.0.1 port={self._ports[0]} user=holdfast application_name=standby"
        self._run("pg_basebackup", "-d", source, "-D", standby, "-R", "-c", "fast", "-X", "stream")
        self.standby = self._start(standby, 1)
        self._wait_for(1)
        run(
            self._url(0),
            "ALTER SYSTEM SET synchronous_standby_names = 'standby'",
            "SELECT pg_reload_conf()",
        )
        while run(self._url(0), "SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            time.sleep(0.05)
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.url = f"postgresql://holdfast@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=3"

    def fail_over(self) -> None:
        """The primary dies, and the standby takes its place."""
        self.primary.send_signal(signal.SIGQUIT)
        self.primary.wait()
        self._run("pg_ctl", "promote", "-D", self._folder / "standby", "-w")

    def stop(self) -> None:
        for server in (self.primary, self.standby):
            with suppress(ProcessLookupError):
                server.send_signal(signal.SIGQUIT)
            server.wait()

    def _url(self, number: int) -> str:
        return f"postgresql://holdfast@127.0.0.1:{self._ports[number]}/postgres"

    def _wait_for(self, number: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self._url(number)).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.05)

    def _start(self, data: Path, number: int) -> "subprocess.Popen[bytes]":
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        return self._open("postgres", "-D", data, "-p", str(self._ports[number]), "-k", self._folder, *settings)

    def _run(self, program: str, *arguments: str | Path) -> None:
        assert self._open(program, *arguments).wait() == 0, f"{program} failed"

    def _open(self, program: str, *arguments: str | Path) -> "subprocess.Popen[bytes]":
        is_root = os.geteuid() == 0
        return subprocess.Popen(
            [self._programs / program, *arguments],
            user=UNPRIVILEGED_ID if is_root else None,
            group=UNPRIVILEGED_ID if is_root else None,
            extra_groups=[] if is_root else None,
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def replicated_server() -> Iterator[ReplicatedServer]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-standby-"))
    server = ReplicatedServer(folder)
    try:
        yield server
    finally:
        server.stop()
        rmtree(folder, ignore_errors=True)
