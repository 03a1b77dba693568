"""Many concurrent streams through a gateway, some with faults: every client gets its own stream, and nothing leaks.

Each client sends a number of its own, and the upstream streams events that contain it. Faults of the upstream: an error
status, a stream that breaks off, a slow stream; fault of the client: it disconnects in the middle.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

EVENTS = 12
FAULTS = ("none", "none", "none", "none", "status", "cut", "drip", "leave")
SECONDS_MAX = 60.0


class LoadOutcome(msgspec.Struct):
    """The number of exchanges by outcome; `wrong` describes each unexpected one."""

    ended: dict[str, int]
    wrong: list[str]


async def _upstream(
    open_ends: set[asyncio.StreamWriter], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    open_ends.add(writer)
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            headers = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
            await reader.readexactly(int(headers[b"content-length"]))
            number, fault = headers[b"x-number"], headers[b"x-fault"].decode()
            if fault == "status":
                writer.write(b"HTTP/1.1 529 Busy\r\ncontent-length: %d\r\n\r\n%s" % (len(number), number))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for index in range(EVENTS):
                if writer.is_closing():
                    return
                event = b"data: %s %d\n\n" % (number, index)
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                if fault == "cut" and index == EVENTS // 2:
                    writer.close()
                    return
                await asyncio.sleep(0.02 if fault in ("drip", "leave") else 0.002)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        pass
    finally:
        open_ends.discard(writer)
        writer.close()


async def _client(
    address: tuple[str, int], number: int, chance: random.Random, until: float, outcome: LoadOutcome
) -> None:
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    turn = 0
    while time.monotonic() < until:
        turn += 1
        request_id = f"{number}-{turn}"
        fault = chance.choice(FAULTS)
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection(*address)
        body = (
            b'{"model":"claude-sonnet-5-5","max_tokens":9,"messages":[{"role":"user","content":"%s"}]}'
            % request_id.encode()
        )
        writer.write(
            f"POST /anthropic/v1/messages HTTP/1.1\r\nHost: localhost\r\nx-number: {request_id}\r\nx-fault: {fault}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        async with asyncio.timeout(SECONDS_MAX):
            ended, whole = await _read(reader, request_id, fault)
        outcome.ended[ended] = outcome.ended.get(ended, 0) + 1
        if ended != fault:
            outcome.wrong.append(f"{request_id}: {fault} ended as {ended}")
        if not whole:
            writer.close()
            reader = writer = None
    if writer is not None:
        writer.close()


async def _read(reader: asyncio.StreamReader, request_id: str, fault: str) -> tuple[str, bool]:
    """How a reply ended, named like the faults, and whether the connection can be reused."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if head.startswith(b"http/1.1 529"):
        return ("status" if await reader.readexactly(len(request_id)) == request_id.encode() else "mixed up"), True
    if not head.startswith(b"http/1.1 200"):
        return head[:40].decode("latin-1"), False
    received = b""
    while True:
        line = await reader.readline()
        if not line:
            break
        size = int(line, 16)
        part = await reader.readexactly(size + 2) if size else await reader.readline()
        received += part[:size]
        if fault == "leave" and received.count(b"\n\n") >= 3:
            return ("leave" if _is_own_stream(received, request_id, 3) else "mixed up"), False
        if not size:
            return (fault if _is_own_stream(received, request_id, EVENTS) else "mixed up"), True
    return ("cut" if _is_own_stream(received, request_id, EVENTS // 2 + 1) else "lost"), False


def _is_own_stream(received: bytes, request_id: str, events_min: int) -> bool:
    events = [line for line in received.decode().split("\n\n") if line]
    return len(events) >= events_min and all(line == f"data: {request_id} {index}" for index, line in enumerate(events))


async def run_load(
    serve: Callable[[int], tuple[tuple[str, int], int]], *, streams: int, seconds: float, seed: int = 1
) -> tuple[LoadOutcome, Counter[str]]:
    """The outcome of all clients, and by how many file descriptors of each kind the gateway grew.

    `serve` starts a gateway in front of an upstream port and returns its address and process id.
    """
    open_ends: set[asyncio.StreamWriter] = set()
    server = await asyncio.start_server(partial(_upstream, open_ends), "127.0.0.1", 0, backlog=1024)
    address, process = await asyncio.to_thread(serve, server.sockets[0].getsockname()[1])
    outcome = LoadOutcome({}, [])
    await _client(address, 0, random.Random(seed), time.monotonic() + 0.5, outcome)
    before = descriptors(process)
    until = time.monotonic() + seconds
    clients = (_client(address, number + 1, random.Random(seed + number), until, outcome) for number in range(streams))
    await asyncio.gather(*clients)
    server.close()
    for writer in tuple(open_ends):
        writer.close()
    after = before
    for _ in range(100):
        after = descriptors(process)
        if after["socket"] <= before["socket"] + 1:
            break
        await asyncio.sleep(0.2)
    return outcome, Counter({kind: after[kind] - before[kind] for kind in after | before})


def descriptors(process: int) -> Counter[str]:
    """The open file descriptors of a process, by kind."""
    counts: Counter[str] = Counter()
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            counts[os.readlink(link).partition(":")[0]] += 1
        except OSError:
            continue
    return counts
