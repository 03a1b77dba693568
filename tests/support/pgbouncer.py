"""A pooler in transaction mode in front of a test database: PgBouncer, where it is installed."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import psycopg

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
START_SECONDS_MAX = 20.0
UNPRIVILEGED_ID = 65534
SETTINGS = """
[databases]
{name} = host={host} dbname={name} user={user} password='{password}'

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 200
default_pool_size = {connections}
logfile = {folder}/log
"""


@contextmanager
def pooler_to(url: str, folder: Path, *, connections: int = 6) -> Iterator[str]:
    """The address of the database behind a pooler with so many connections to the server."""
    assert PROGRAM is not None
    parts = urlsplit(url)
    host, name, user = unquote(parts.hostname or parts.netloc.rpartition("@")[2]), parts.path[1:], parts.username or ""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    password = unquote(parts.password or "").replace("'", "''")
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        SETTINGS.format(
            host=host, name=name, user=user, password=password, port=port, connections=connections, folder=folder
        )
    )
    # It refuses to run as root.
    unprivileged = UNPRIVILEGED_ID if os.geteuid() == 0 else None
    if unprivileged is not None:
        for path in (folder, settings):
            os.chown(path, unprivileged, unprivileged)
        for path in folder.parents:
            if path != Path("/") and not path.stat().st_mode & 0o001:
                path.chmod(path.stat().st_mode | 0o011)
    pooler = subprocess.Popen(
        [PROGRAM, str(settings)],
        user=unprivileged,
        group=unprivileged,
        extra_groups=None if unprivileged is None else [],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"postgresql://{quote(user)}@127.0.0.1:{port}/{name}"
    try:
        _wait_for(address, folder)
        yield address
    finally:
        pooler.kill()
        pooler.wait()


def _wait_for(address: str, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError:
            log = folder / "log"
            assert time.monotonic() < deadline, log.read_text() if log.exists() else "pgbouncer does not start"
            time.sleep(0.05)
