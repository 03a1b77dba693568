"""Whether 2,000 half-open connections (slowloris) leave authenticated calls at 90 % of their undisturbed rate.

Two attacks: heads that do not end, and bodies that come byte by byte. The attacker holds its connections from several
addresses, so that none is refused for having too many, and opens each one again when it is closed. A rate is measured
once the connections are held and what they sent is answered.

Attacker, client, gateway and recorder share the machine's cores with whatever else runs. So every attack is measured
between two phases without one and compared with these two only, several times in turn, and the median of the ratios
counts. What the front's processor time allows, calls a second of it, is compared in the same way: other programs do not
take from that, so it says what the attack costs where the rates only say how busy the machine was.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from holdfast.service.auth.keys import make_key
from holdfast.service.http.uvicorn_protocol import raise_descriptors_max
from holdfast.stores.sqlite.store import SqliteStore

CONNECTIONS = 2_000
HELD_MIN = 1_900
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
CLIENTS = 4
SECONDS = 2.0
ROUNDS = 6
RAMP_SECONDS_MAX = 60.0
SETTLE_SECONDS = 2.0
DROP_SECONDS = 8
HOLD_SECONDS = 12.0  # Longer than a head may take, so that each is timed out and opened again.
BODY = json.dumps({"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]})
_HEAD = b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
ATTACKS = {"heads": (_HEAD, b"x-a: b\r\n"), "bodies": (_HEAD + b"content-length: 100000\r\n\r\n", b"x")}


class Measured(NamedTuple):
    calls_a_second: float
    cpu_ms_a_call: float
    held: int


class Compared(NamedTuple):
    """An attacked phase over the mean of those before and after it: the rate, and calls by the front's CPU time."""

    rate: float
    capacity: float


class _HalfOpen(asyncio.Protocol):
    """One connection of the attacker."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self.closed = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._start)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def attack(port: int, name: str) -> None:
    start, drop = ATTACKS[name]
    held: dict[int, _HalfOpen] = {}

    async def hold(number: int) -> None:
        loop, source = asyncio.get_running_loop(), (ADDRESSES[number % len(ADDRESSES)], 0)
        while True:
            with suppress(OSError):
                _, protocol = await loop.create_connection(
                    lambda: _HalfOpen(start), "127.0.0.1", port, local_addr=source
                )
                held[number] = protocol
                await protocol.closed
            await asyncio.sleep(0.1)

    async def send_drops() -> None:
        """To every connection once in DROP_SECONDS."""
        for turn in range(sys.maxsize):
            for number, protocol in held.items():
                if number % DROP_SECONDS == turn % DROP_SECONDS and protocol.transport is not None:
                    protocol.transport.write(drop)
            await asyncio.sleep(1.0)

    await asyncio.gather(send_drops(), *(hold(number) for number in range(CONNECTIONS)))


def _read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Front:
    """The gateway's process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def count_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._pid}/fd"))

    def cpu_seconds(self) -> float:
        return _read_cpu_seconds(self._pid)

    def wait_for_recorder(self) -> None:
        """Returns once the recorder has caught up, so that no measurement pays for the calls of the one before."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text(encoding="ascii").split()
        deadline, busy = time.monotonic() + RAMP_SECONDS_MAX, True
        while busy and time.monotonic() < deadline:
            before = sum(_read_cpu_seconds(int(pid)) for pid in children)
            time.sleep(1.0)
            busy = sum(_read_cpu_seconds(int(pid)) for pid in children) - before > 0.05

    def wait_for_descriptors(
        self, *, at_least: int = 0, at_most: int = sys.maxsize, settle_seconds: float = 0.0
    ) -> None:
        """Returns once the number of descriptors has been in the range for `settle_seconds`."""
        since = started = time.monotonic()
        while time.monotonic() - since < settle_seconds or not at_least <= self.count_descriptors() <= at_most:
            if not at_least <= self.count_descriptors() <= at_most:
                since = time.monotonic()
            assert time.monotonic() - started < RAMP_SECONDS_MAX, f"{self.count_descriptors()} descriptors are open"
            time.sleep(0.1)


async def count_calls(port: int, key: str) -> int:
    """Answered calls in SECONDS."""
    request = f"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {key}\r\n"
    request += f"content-length: {len(BODY)}\r\n\r\n{BODY}"
    end, answered = time.monotonic() + SECONDS, 0

    async def call_repeatedly() -> None:
        nonlocal answered
        while time.monotonic() < end:
            # A new connection for each call: those are what an attack keeps out.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            writer.close()
            answered += 1

    await asyncio.gather(*(call_repeatedly() for _ in range(CLIENTS)))
    return answered


def measure(front: Front, port: int, key: str, held_before: int) -> Measured:
    front.wait_for_recorder()
    cpu, held = front.cpu_seconds(), front.count_descriptors() - held_before
    answered = asyncio.run(count_calls(port, key))
    return Measured(answered / SECONDS, (front.cpu_seconds() - cpu) / answered * 1000, held)


@contextmanager
def attacking(front: Front, port: int, held_before: int, name: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, __file__, str(port), name]) as attacker:
        try:
            # The last requests are answered meanwhile: the attack is to hold connections, not to open them at once.
            front.wait_for_descriptors(at_least=held_before + HELD_MIN, settle_seconds=SETTLE_SECONDS)
            yield
        finally:
            attacker.kill()
            attacker.wait()
            front.wait_for_descriptors(at_most=held_before + 50)


def run() -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        db = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "s.db")
        made = make_key("gateway", at=0.0, random_bytes=os.urandom)
        with SqliteStore(db) as store:
            store.records.add_key(made.row)
        words = [sys.executable, "-m", "holdfast", "serve", "--simulate", "--port", "0", "--db", db]
        environ = {**os.environ, "ANTHROPIC_API_KEY": "sk-any"}
        process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ))
        stack.callback(process.terminate)
        assert process.stdout is not None
        port, front = int(process.stdout.readline().rpartition(":")[2]), Front(process.pid)
        asyncio.run(count_calls(port, made.key))
        before = front.count_descriptors()
        compared: dict[str, list[Compared]] = {name: [] for name in ATTACKS}
        alone = measure(front, port, made.key, before)
        for number in range(1, ROUNDS + 1):
            for name, found in compared.items():
                with attacking(front, port, before, name):
                    attacked = measure(front, port, made.key, before)
                after = measure(front, port, made.key, before)
                found.append(compare(attacked, alone, after))
                rates = f"{alone.calls_a_second:.0f}, {attacked.calls_a_second:.0f}, {after.calls_a_second:.0f}"
                held = f"{attacked.held:,} held; load {os.getloadavg()[0]:.1f}"
                yield f"{name} {number}: calls a second before, attacked, after", f"{rates}; {held}"
                alone = after
        for name, found in compared.items():
            rates, capacities = (describe_ratios(ratios) for ratios in zip(*found, strict=True))
            yield f"{name}: attacked / undisturbed, bar 90 %", f"rate {rates}; calls a CPU second {capacities}"
        for name in ATTACKS:
            with attacking(front, port, before, name):
                cpu_before = front.cpu_seconds()
                time.sleep(HOLD_SECONDS)
                busy = (front.cpu_seconds() - cpu_before) / HOLD_SECONDS
            yield f"{name}: the front's CPU without calls", f"{busy:.1%} of a core"


def compare(attacked: Measured, before: Measured, after: Measured) -> Compared:
    return Compared(
        2 * attacked.calls_a_second / (before.calls_a_second + after.calls_a_second),
        (before.cpu_ms_a_call + after.cpu_ms_a_call) / 2 / attacked.cpu_ms_a_call,
    )


def describe_ratios(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.0%} ({min(ratios):.0%} to {max(ratios):.0%})"


if __name__ == "__main__":
    raise_descriptors_max()
    asyncio.run(attack(int(sys.argv[1]), sys.argv[2]))
