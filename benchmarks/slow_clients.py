"""Whether 2,000 half-open connections (slowloris) leave authenticated calls at 90 % of their undisturbed rate.

The attacker opens a connection again as soon as it is closed, and sends a header line now and then. Half of the
connections hold back the end of a head, the others send a body byte by byte. Rounds with and without the attack
alternate, and medians are compared, because the machine may be busy with other things.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.service.auth.keys import make_key
from holdfast.service.http.uvicorn_protocol import raise_descriptors_max
from holdfast.stores.sqlite.store import SqliteStore

CONNECTIONS = 2_000
CLIENTS = 4
SECONDS = 4.0
ROUNDS = 7
BODY = json.dumps({"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]})


async def attack(port: int) -> None:
    async def hold(head: bytes, drop: bytes) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head)
                while not reader.at_eof():
                    writer.write(drop)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1_000), 8)
                writer.close()
            await asyncio.sleep(0.1)

    head = b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    half_heads = (hold(head, b"x-a: b\r\n") for _ in range(CONNECTIONS // 2))
    half_bodies = (hold(head + b"content-length: 100000\r\n\r\n", b"x") for _ in range(CONNECTIONS // 2))
    await asyncio.gather(*half_heads, *half_bodies)


async def measure(port: int, key: str) -> float:
    """Answered calls a second."""
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
    return answered / SECONDS


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
        port = int(process.stdout.readline().rpartition(":")[2])
        asyncio.run(measure(port, made.key))
        rates: list[tuple[float, float]] = []
        for number in range(1, ROUNDS + 1):
            alone = asyncio.run(measure(port, made.key))
            with subprocess.Popen([sys.executable, __file__, str(port)]) as attacker:
                time.sleep(3)
                held = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
                attacked = asyncio.run(measure(port, made.key))
                attacker.kill()
            time.sleep(1)
            share = f"{alone:.0f}, {attacked:.0f} ({attacked / alone:.0%}), with {held:,} descriptors open"
            rates.append((alone, attacked))
            yield f"round {number}: calls a second alone, attacked", share
        alone, attacked = (statistics.median(column) for column in zip(*rates, strict=True))
        yield "median of each, and their ratio", f"{alone:.0f}, {attacked:.0f} ({attacked / alone:.0%}); bar 90 %"
        ratio = statistics.median(attacked / alone for alone, attacked in rates)
        yield "median of the ratios within a round", f"{ratio:.0%}"


if __name__ == "__main__":
    raise_descriptors_max()
    asyncio.run(attack(int(sys.argv[1])))
