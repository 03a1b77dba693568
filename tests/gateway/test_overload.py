"""More than fits: bodies of any size go through a gateway that holds a little of them, however slow the ends are."""

import hashlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.served_gateway import TIMEOUT_SECONDS, ServedGateway, read_message, serve_gateway

MEGABYTE = bytes(range(256)) * 4096
BODY_MEGABYTES = 100
HELD_BYTES_MAX = 24 * len(MEGABYTE)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Listening:
    """An upstream whose connections a test holds in its own hands."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(TIMEOUT_SECONDS)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def taken(self) -> socket.socket:
        connection, _ = self._server.accept()
        connection.settimeout(TIMEOUT_SECONDS)
        return connection

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def upstream() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


@pytest.fixture
def gateway(upstream: Listening) -> Iterator[ServedGateway]:
    with serve_gateway(upstream.url) as running:
        yield running


@contextmanager
def of_its_own(url: str, db: Path, *more: str) -> Iterator[tuple[tuple[str, int], int]]:
    """A gateway in a process of its own: where it listens, and which process it is."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(db)]
    with subprocess.Popen([*words, "--upstream", f"anthropic={url}", *more], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        parts = urlsplit(process.stdout.readline().decode().strip())
        assert parts.hostname
        assert parts.port
        try:
            yield (parts.hostname, parts.port), process.pid
        finally:
            process.kill()


def most_memory_bytes(process: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) * 1024


def head(size_bytes: int | None) -> bytes:
    length = b"transfer-encoding: chunked" if size_bytes is None else b"content-length: %d" % size_bytes
    return b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: localhost\r\n%s\r\n\r\n" % length


def drained(connection: socket.socket, size_bytes: int) -> str:
    """The digest of the body that comes, none of which is kept."""
    found, seen, received = hashlib.sha256(), 0, b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    rest = received.partition(b"\r\n\r\n")[2]
    while True:
        found.update(rest)
        seen += len(rest)
        if seen >= size_bytes:
            break
        rest = connection.recv(65536)
        assert rest
    return found.hexdigest()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured where /proc tells it")
@pytest.mark.parametrize("arguments", [(), ("--improve",)], ids=["observed", "improved"])
def test_a_hundred_megabytes_go_through_a_little_memory(
    upstream: Listening, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    size_bytes, found = BODY_MEGABYTES * len(MEGABYTE), list[str]()

    def taken() -> None:
        with upstream.taken() as connection:
            found.append(drained(connection, size_bytes))
            connection.sendall(OK)

    with of_its_own(upstream.url, tmp_path / "s.db", *arguments) as (address, process):
        before = most_memory_bytes(process)
        reader = threading.Thread(target=taken)
        reader.start()
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(head(size_bytes))
            for _ in range(BODY_MEGABYTES):
                connection.sendall(MEGABYTE)
            assert read_message(connection)[1] == b"{}"
        reader.join()
        assert most_memory_bytes(process) - before < HELD_BYTES_MAX
    assert found == [hashlib.sha256(MEGABYTE * BODY_MEGABYTES).hexdigest()]


def pushed(connection: socket.socket, part: bytes) -> int:
    """How much of a part is taken from us, again and again, before nobody takes any more."""
    connection.settimeout(0.5)
    total = 0
    while total < 64 * len(MEGABYTE):
        try:
            total += connection.send(part[total % len(part) :])
        except TimeoutError:
            break
    connection.settimeout(TIMEOUT_SECONDS)
    return total


def test_an_upstream_that_reads_nothing_makes_its_client_wait(upstream: Listening, gateway: ServedGateway) -> None:
    size_bytes = 64 * len(MEGABYTE)
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(head(size_bytes))
        with upstream.taken() as taken:
            sent = pushed(connection, MEGABYTE)
            assert sent < HELD_BYTES_MAX
            rest = (MEGABYTE * 64)[sent:]
            sender = threading.Thread(target=connection.sendall, args=(rest,))
            sender.start()
            assert drained(taken, size_bytes) == hashlib.sha256(MEGABYTE * 64).hexdigest()
            sender.join()
            taken.sendall(OK)
            assert read_message(connection)[1] == b"{}"


def test_a_client_that_reads_nothing_makes_its_upstream_wait(upstream: Listening, gateway: ServedGateway) -> None:
    size_bytes = 64 * len(MEGABYTE)
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(head(0))
        with upstream.taken() as taken:
            read_message(taken)
            taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size_bytes)
            sent = pushed(taken, MEGABYTE)
            assert sent < HELD_BYTES_MAX
            sender = threading.Thread(target=taken.sendall, args=((MEGABYTE * 64)[sent:],))
            sender.start()
            assert drained(connection, size_bytes) == hashlib.sha256(MEGABYTE * 64).hexdigest()
            sender.join()


def test_a_request_that_is_whole_wakes_its_upstream_once(upstream: Listening, gateway: ServedGateway) -> None:
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        for _ in range(5):
            connection.sendall(head(2) + b"{}")
            with upstream.taken() as taken:
                assert taken.recv(65536).endswith(b"\r\n\r\n{}")
                taken.sendall(OK)
            assert read_message(connection)[1] == b"{}"


@pytest.mark.parametrize("known", [True, False], ids=["length", "chunks"])
def test_a_request_that_is_cut_anywhere_is_cut_there_for_the_upstream(
    upstream: Listening, gateway: ServedGateway, known: bool
) -> None:
    """What had come arrives, and no end is invented: half a request is never answered as a whole one."""
    body = b'{"model":"m"}' if known else b'6\r\n{"mode\r\n7\r\nl":"m"}\r\n0\r\n\r\n'
    for cut in range(len(body)):
        with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(head(len(body) if known else None) + body[:cut])
            with upstream.taken() as taken:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += taken.recv(65536)
                connection.close()
                while more := taken.recv(65536):
                    received += more
        rest = received.partition(b"\r\n\r\n")[2]
        if known:
            assert body[:cut].startswith(rest)
        else:
            assert not rest.endswith(b"0\r\n\r\n")
