"""The two ends of a measured gateway: a minimal upstream in its own process, and clients."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

EVENTS = 20
PAUSE_SECONDS = 0.02
TEXT = "You read before you write. " * 400


def body(*, stream: bool) -> bytes:
    request = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 100,
        "stream": stream,
        "system": TEXT,
        "messages": [{"role": "user", "content": "What does this line do? " * 100}],
    }
    return json.dumps(request).encode()


def _event(kind: str, **members: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5"}
_USAGE = {"input_tokens": 2_700, "output_tokens": 5}
WHOLE = json.dumps(
    {**_MESSAGE, "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn", "usage": _USAGE}
).encode()
FIRST = _event("message_start", message={**_MESSAGE, "content": [], "stop_reason": None, "usage": _USAGE}) + _event(
    "content_block_start", index=0, content_block={"type": "text", "text": ""}
)
LAST = (
    _event("content_block_stop", index=0)
    + _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5})
    + _event("message_stop")
)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, events: int, pause_seconds: float
) -> None:
    """Responds with one body, or with events that each contain the time at which they were sent."""
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            request_body = await reader.readexactly(_length(head))
            if b'"stream":true' not in request_body.replace(b": ", b":"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(WHOLE), WHOLE))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            _chunk(writer, FIRST)
            for _ in range(events):
                sent_times = {"type": "text_delta", "text": f"at {time.monotonic():.9f} "}
                _chunk(writer, _event("content_block_delta", index=0, delta=sent_times))
                await asyncio.sleep(pause_seconds)
            _chunk(writer, LAST)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


def _chunk(writer: asyncio.StreamWriter, part: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(part), part))


def _length(head: bytes) -> int:
    lines = (line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return int(next(lines, b"0"))


async def _listen(events: int, pause_seconds: float) -> None:
    answer = partial(_answer, events=events, pause_seconds=pause_seconds)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def upstream(*, events: int = EVENTS, pause_seconds: float = PAUSE_SECONDS) -> Iterator[int]:
    """The port of an upstream in its own process, which streams so many events with pauses."""
    words = [sys.executable, "-m", "benchmarks._gateway_ends", str(events), str(pause_seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


class Pace(NamedTuple):
    """Medians in milliseconds: the time to the first byte of a body, and how late an event came."""

    first_ms: float
    late_ms: float


def _request(path: str, headers: Mapping[str, str], *, stream: bool) -> bytes:
    request = body(stream=stream)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: any\r\nanthropic-version: 2023-06-01\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{head}content-type: application/json\r\nContent-Length: {len(request)}\r\n\r\n".encode() + request


async def _stream(port: int, request: bytes, rounds: int, after_seconds: float) -> list[tuple[float, list[float]]]:
    await asyncio.sleep(after_seconds)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    samples: list[tuple[float, list[float]]] = []
    for _ in range(rounds):
        started, first, late = time.monotonic(), 0.0, list[float]()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode("latin-1"))
        while (size := int(await reader.readline(), 16)) > 0:
            events = await reader.readexactly(size + 2)
            now = time.monotonic()
            first = first or now - started
            sent_times = (part.partition(b" ")[0] for part in events.split(b'"at ')[1:])
            late += [now - float(at) for at in sent_times]
        await reader.readline()
        if len(late) != EVENTS:
            raise RuntimeError(f"{len(late)} events of {EVENTS} came")
        samples.append((first, late))
    writer.close()
    return samples


async def pace(port: int, path: str, headers: Mapping[str, str] = {}, *, streams: int, rounds: int) -> Pace:
    """Runs streams whose starts are spread over the duration of one."""
    request = _request(path, headers, stream=True)
    await _stream(port, request, 1, 0.0)
    offset_seconds = EVENTS * PAUSE_SECONDS / streams
    results = await asyncio.gather(*(_stream(port, request, rounds, at * offset_seconds) for at in range(streams)))
    samples = [sample for stream_samples in results for sample in stream_samples]
    late = statistics.median(seconds for _, late_seconds in samples for seconds in late_seconds)
    return Pace(statistics.median(first for first, _ in samples) * 1000, late * 1000)


async def _ask(port: int, request: bytes, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        for _ in range(count):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(head.decode("latin-1"))
            await reader.readexactly(_length(head))


async def requests_a_second(
    port: int, path: str, headers: Mapping[str, str] = {}, *, clients: int, count: int
) -> float:
    """Each client sends its next request when the previous one was answered."""
    request = _request(path, headers, stream=False)
    await _ask(port, request, 5)
    started = time.monotonic()
    each = max(1, count // clients)
    await asyncio.gather(*(_ask(port, request, each) for _ in range(clients)))
    return each * clients / (time.monotonic() - started)


if __name__ == "__main__":
    asyncio.run(_listen(int(sys.argv[1]), float(sys.argv[2])))
