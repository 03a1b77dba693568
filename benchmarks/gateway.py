"""What the gateway adds: time to the first byte and per event, direct and through it, on this machine.

An upstream of a few lines streams events at a fixed pace to a number of clients at once; each event carries the
time at which it was sent. Run: `python benchmarks/gateway.py [--streams 32]
[--rounds 10] [--together]`; streams begin spread over the length of one, or all at one moment.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

EVENTS = 20
PAUSE_SECONDS = 0.02
BODY = json.dumps(
    {
        "model": "claude-sonnet-5-5",
        "max_tokens": 100,
        "stream": True,
        "system": "You read before you write. " * 400,
        "messages": [{"role": "user", "content": "What does this line do? " * 100}],
    }
).encode()

Sample = tuple[float, list[float]]
"""Seconds to the first byte, and how late each event came."""


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request with events that tell when they were sent."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lengths = (
                line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            await reader.readexactly(int(next(lengths)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(EVENTS):
                event = b"event: ping\ndata: %.9f\n\n" % time.monotonic()
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await asyncio.sleep(PAUSE_SECONDS)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def stream(port: int, path: str, rounds: int, *, after_seconds: float = 0.0) -> list[Sample]:
    await asyncio.sleep(after_seconds)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    samples: list[Sample] = []
    for _ in range(rounds):
        started = time.monotonic()
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: any\r\nContent-Length: %d\r\n\r\n%s"
            % (path.encode(), len(BODY), BODY)
        )
        await reader.readuntil(b"\r\n\r\n")
        first, late = 0.0, []
        while (size := int(await reader.readline(), 16)) > 0:
            event = await reader.readexactly(size + 2)
            now = time.monotonic()
            first = first or now - started
            late += [now - float(line[6:]) for line in event.split(b"\n") if line.startswith(b"data: ")]
        await reader.readline()
        samples.append((first, late))
    writer.close()
    return samples


async def measured(port: int, path: str, *, streams: int, rounds: int, together: bool) -> tuple[float, float, float]:
    """Medians of the time to the first byte and of the lateness of events, in milliseconds, and requests a second."""
    await stream(port, path, 1)
    started = time.monotonic()
    apart_seconds = 0.0 if together else EVENTS * PAUSE_SECONDS / streams
    found = await asyncio.gather(
        *(stream(port, path, rounds, after_seconds=place * apart_seconds) for place in range(streams))
    )
    seconds = time.monotonic() - started
    samples = [sample for one in found for sample in one]
    first = statistics.median(first for first, _ in samples) * 1000
    late = statistics.median(one for _, late in samples for one in late) * 1000
    return first, late, len(samples) / seconds


async def main(streams: int, rounds: int, *, together: bool) -> None:
    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "serve",
            "--port",
            "0",
            "--db",
            str(Path(folder) / "s.db"),
            "--upstream",
            f"anthropic=http://127.0.0.1:{port}",
        ]
        started = (sys.executable, "-m", "holdfast", *words)
        gateway = await asyncio.create_subprocess_exec(*started, stdout=asyncio.subprocess.PIPE)
        assert gateway.stdout is not None
        url = (await gateway.stdout.readline()).decode().strip()
        try:
            direct = await measured(port, "/v1/messages", streams=streams, rounds=rounds, together=together)
            own = int(url.rpartition(":")[2])
            path = "/anthropic/v1/messages"
            through = await measured(own, path, streams=streams, rounds=rounds, together=together)
        finally:
            gateway.terminate()
            await gateway.wait()
    print(f"{streams} streams, {rounds} rounds, {EVENTS} events each, {'together' if together else 'apart'}; medians")
    print(f"{'':8}  {'first byte':>10}  {'an event':>9}  {'requests/s':>10}")
    for name, (first, late, rate) in (("direct", direct), ("gateway", through)):
        print(f"{name:8}  {first:7.2f} ms  {late:6.2f} ms  {rate:10.1f}")
    print(f"{'added':8}  {through[0] - direct[0]:7.2f} ms  {through[1] - direct[1]:6.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--together", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.streams, given.rounds, together=given.together))
