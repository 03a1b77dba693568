"""Overload: bodies of any size pass through a gateway that buffers little, however slow the ends are."""

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
BUFFERED_BYTES_MAX = 24 * len(MEGABYTE)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class ManualUpstream:
    """An upstream whose connections a test controls."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(TIMEOUT_SECONDS)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def accept(self) -> socket.socket:
        connection, _ = self._server.accept()
        connection.settimeout(TIMEOUT_SECONDS)
        return connection

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def upstream() -> Iterator[ManualUpstream]:
    listening = ManualUpstream()
    yield listening
    listening.close()


@pytest.fixture
def gateway(upstream: ManualUpstream) -> Iterator[ServedGateway]:
    with serve_gateway(upstream.url) as running:
        yield running


@contextmanager
def start_process(url: str, db: Path, *more: str) -> Iterator[tuple[tuple[str, int], int]]:
    """A gateway in its own process: its address and its process id."""
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


def peak_memory_bytes(process: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert match
    return int(match[1]) * 1024


def head(size_bytes: int | None) -> bytes:
    length = b"transfer-encoding: chunked" if size_bytes is None else b"content-length: %d" % size_bytes
    return b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: localhost\r\n%s\r\n\r\n" % length


def drain(connection: socket.socket, size_bytes: int) -> str:
    """The digest of the incoming body, none of which is stored."""
    digest, body_bytes, received = hashlib.sha256(), 0, b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    rest = received.partition(b"\r\n\r\n")[2]
    while True:
        digest.update(rest)
        body_bytes += len(rest)
        if body_bytes >= size_bytes:
            break
        rest = connection.recv(65536)
        assert rest
    return digest.hexdigest()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured where /proc tells it")
@pytest.mark.parametrize("arguments", [(), ("--improve",)], ids=["observed", "improved"])
def test_a_hundred_megabytes_pass_through_little_memory(
    upstream: ManualUpstream, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    size_bytes, digests = BODY_MEGABYTES * len(MEGABYTE), list[str]()

    def accept() -> None:
        with upstream.accept() as connection:
            digests.append(drain(connection, size_bytes))
            connection.sendall(OK)

    with start_process(upstream.url, tmp_path / "s.db", *arguments) as (address, process):
        before = peak_memory_bytes(process)
        reader = threading.Thread(target=accept)
        reader.start()
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(head(size_bytes))
            for _ in range(BODY_MEGABYTES):
                connection.sendall(MEGABYTE)
            assert read_message(connection)[1] == b"{}"
        reader.join()
        assert peak_memory_bytes(process) - before < BUFFERED_BYTES_MAX
    assert digests == [hashlib.sha256(MEGABYTE * BODY_MEGABYTES).hexdigest()]


def push(connection: socket.socket, part: bytes) -> int:
    """How much of a repeated part is accepted before the reader blocks."""
    connection.settimeout(0.5)
    total = 0
    while total < 64 * len(MEGABYTE):
        try:
            total += connection.send(part[total % len(part) :])
        except TimeoutError:
            break
    connection.settimeout(TIMEOUT_SECONDS)
    return total


def test_an_upstream_that_reads_nothing_makes_its_client_wait(upstream: ManualUpstream, gateway: ServedGateway) -> None:
    size_bytes = 64 * len(MEGABYTE)
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(head(size_bytes))
        with upstream.accept() as accepted:
            sent = push(connection, MEGABYTE)
            assert sent < BUFFERED_BYTES_MAX
            rest = (MEGABYTE * 64)[sent:]
            sender = threading.Thread(target=connection.sendall, args=(rest,))
            sender.start()
            assert drain(accepted, size_bytes) == hashlib.sha256(MEGABYTE * 64).hexdigest()
            sender.join()
            accepted.sendall(OK)
            assert read_message(connection)[1] == b"{}"


def test_a_client_that_reads_nothing_makes_its_upstream_wait(upstream: ManualUpstream, gateway: ServedGateway) -> None:
    size_bytes = 64 * len(MEGABYTE)
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(head(0))
        with upstream.accept() as accepted:
            read_message(accepted)
            accepted.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size_bytes)
            sent = push(accepted, MEGABYTE)
            assert sent < BUFFERED_BYTES_MAX
            sender = threading.Thread(target=accepted.sendall, args=((MEGABYTE * 64)[sent:],))
            sender.start()
            assert drain(connection, size_bytes) == hashlib.sha256(MEGABYTE * 64).hexdigest()
            sender.join()


def test_a_complete_request_wakes_its_upstream_once(upstream: ManualUpstream, gateway: ServedGateway) -> None:
    with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
        for _ in range(5):
            connection.sendall(head(2) + b"{}")
            with upstream.accept() as accepted:
                assert accepted.recv(65536).endswith(b"\r\n\r\n{}")
                accepted.sendall(OK)
            assert read_message(connection)[1] == b"{}"


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunks"])
def test_a_request_cut_off_anywhere_is_cut_off_there_for_the_upstream(
    upstream: ManualUpstream, gateway: ServedGateway, has_length: bool
) -> None:
    """The received bytes are forwarded, and no end is invented: half a request is never answered as a complete one."""
    body = b'{"model":"m"}' if has_length else b'6\r\n{"mode\r\n7\r\nl":"m"}\r\n0\r\n\r\n'
    for cut_at in range(len(body)):
        with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(head(len(body) if has_length else None) + body[:cut_at])
            with upstream.accept() as accepted:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += accepted.recv(65536)
                connection.close()
                while more := accepted.recv(65536):
                    received += more
        rest = received.partition(b"\r\n\r\n")[2]
        if has_length:
            assert body[:cut_at].startswith(rest)
        else:
            assert not rest.endswith(b"0\r\n\r\n")
