"""How many calls a second the recorder takes from a filled spool, what a call costs it, and how much memory it needs.

Conversations grow by a message of a kilobyte and its reply with each call, and one call in CALLS_A_CONVERSATION begins
a new one. The recorder is the process that `holdfast serve` starts; what it takes to start is measured and subtracted.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.improve_cpu import TEXT
from holdfast.cli.serve.recorder_process import RECORDER_MODULE
from holdfast.gateway.exchange import GatewayCaller
from holdfast.gateway.recording.spool import SpoolWriter
from holdfast.gateway.recording.spool_recorder import BUSY_BACKLOG_BYTES
from holdfast.gateway.recording.worker_process import (
    EndMessage,
    RecorderSetup,
    RequestMessage,
    StatusMessage,
    read_frames,
    write_frame,
)
from holdfast.gateway.routes import Target
from holdfast.stores.open import open_store

CALLS_A_CONVERSATION = 20
TARGET = Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic")
CALLER = GatewayCaller(account="a")
TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}
START = 1_800_000_000.0


class Load(NamedTuple):
    """So many conversations, whose first requests have so many messages, at the same time."""

    title: str
    messages: int
    conversations: int
    calls: int
    rate_min: int | None = None


LOADS = (
    Load("2 KB", 1, 4_000, 3, 2_000),
    Load("100 KB", 81, 60, CALLS_A_CONVERSATION, 500),
    Load("1 MB", 981, 10, CALLS_A_CONVERSATION, 100),
    Load("1,000 conversations of 200 KB", 197, 1_000, 2),
)
RECORDERS = (1, 2)
"""Each worker of `holdfast serve` has one; the machine has two cores."""


class Figures(NamedTuple):
    """`busy_rate` is that of calls while a backlog waited, in which anti-patterns are not searched for; 0 without one.

    Times and memory are those of the process that took most.
    """

    seconds: float
    busy_rate: float
    cpu_seconds: float
    peak_mb: float


def run() -> Iterator[tuple[str, str]]:
    for store in (_sqlite, _postgres):
        try:
            with store() as url:
                started = record(url, Load("", 1, 1, 1), 1)
            for load, recorders in itertools.product(LOADS, RECORDERS):
                if recorders == 1 or load.rate_min:
                    with store() as url:
                        yield _measure(load, recorders, store.__name__.strip("_"), url, started)
        except ImportError as error:
            yield "PostgreSQL", f"not measured, {error.name} is not installed"


def _measure(load: Load, recorders: int, store: str, url: str, started: Figures) -> tuple[str, str]:
    figures = record(url, load, recorders)
    calls = load.conversations * load.calls
    seconds, cpu = figures.seconds - started.seconds, figures.cpu_seconds - recorders * started.cpu_seconds
    bar = f" (at least {load.rate_min:,})" if load.rate_min else ""
    busy = f"{figures.busy_rate:,.0f} calls/s while behind{bar}, " if figures.busy_rate else ""
    rate = f"{busy}{calls / seconds:,.0f} calls/s in all, {cpu / calls * 1_000:.2f} ms of CPU a call"
    title = f"{load.title}, {store}, {recorders} recorder{'s'[: recorders - 1]}, {calls:,} calls"
    return title, f"{rate}, {figures.peak_mb:.0f} MB at most"


def record(url: str, load: Load, recorders: int) -> Figures:
    """Records as many spools in processes of their own, which share the conversations and the store."""
    with tempfile.TemporaryDirectory() as folder:
        # Not side by side: a recorder takes over spools beside its own that have no writer.
        spools = [Path(folder) / str(number) / "spool" for number in range(recorders)]
        for number, spool in enumerate(spools):
            fill_spool(spool, load, range(number, load.conversations, recorders))
        with ThreadPoolExecutor(recorders) as threads:
            figures = list(threads.map(functools.partial(_record_spool, url), spools))
        if any(spool.exists() for spool in spools):
            raise RuntimeError("the recorder has not recorded the spool")
    with open_store(url) as store:
        calls = store.read_facts().calls
    if calls != load.conversations * load.calls:
        raise RuntimeError(f"{calls} calls are recorded, not {load.conversations * load.calls}")
    return Figures(
        max(each.seconds for each in figures),
        sum(each.busy_rate for each in figures),
        sum(each.cpu_seconds for each in figures),
        max(each.peak_mb for each in figures),
    )


def _record_spool(url: str, spool: Path) -> Figures:
    began = time.perf_counter()
    command = [sys.executable, "-P", "-m", RECORDER_MODULE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    write_frame(process.stdin, RecorderSetup(url, simulated=True, spool=str(spool)))
    behind: list[tuple[float, int]] = []
    for message in read_frames(process.stdout):
        if isinstance(message, StatusMessage) and message.backlog_bytes > BUSY_BACKLOG_BYTES:
            behind.append((time.perf_counter(), message.recorded))
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.stdin.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError("the recorder has failed")
    # From the first report on, so that the start of the process does not count.
    (first_at, first), (last_at, last) = (behind[0], behind[-1]) if behind else ((0.0, 0), (0.0, 0))
    busy_rate = (last - first) / (last_at - first_at) if last > first else 0.0
    return Figures(seconds, busy_rate, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def fill_spool(folder: Path, load: Load, conversations: range) -> None:
    writer = SpoolWriter(folder)
    encode = msgspec.msgpack.Encoder().encode
    for call in range(load.calls):
        for conversation in conversations:
            at = START + 30.0 * call + conversation / load.conversations
            id = f"{conversation}-{call}"
            body = make_body(conversation, load.messages + 2 * call)
            request = RequestMessage(id, TARGET, [], CALLER, at, body, len(body), None, ())
            reply = _reply(conversation, load.messages + 2 * call, len(body))
            headers = [(b"content-type", b"application/json")]
            end = EndMessage(id, at + 5.0, 200, headers, "whole", reply, len(reply))
            for message in (request, end):
                if not writer.append(encode(message)):
                    raise RuntimeError("the disk is too slow for the spool")
        written = threading.Event()
        writer.call_when_durable(written.set)
        written.wait()
    writer.close()


def make_body(conversation: int, messages: int) -> bytes:
    request = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 99,
        "system": "Be brief.",
        "tools": [TOOL],
        "messages": [_message(conversation, number) for number in range(messages)],
    }
    return json.dumps(request).encode()


def _message(conversation: int, number: int) -> dict[str, str]:
    return {"role": ("user", "assistant")[number % 2], "content": f"{conversation}, {number}: {TEXT}"}


def _reply(conversation: int, number: int, body_bytes: int) -> bytes:
    """The reply that the next request of the conversation repeats."""
    reply = {
        "id": f"msg_{conversation}_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": [{"type": "text", "text": _message(conversation, number)["content"]}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": body_bytes // 4, "output_tokens": 250},
    }
    return json.dumps(reply).encode()


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "calls.db")


def _postgres() -> AbstractContextManager[str]:
    sys.path.append(str(Path(__file__).parents[1]))
    try:
        from tests.support.postgres_server import new_database  # noqa: PLC0415 - what it needs may not be installed
    finally:
        sys.path.pop()
    return new_database(synced=True)
