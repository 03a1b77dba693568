"""How many calls a second the recorder takes from a filled spool, what a call costs it, and how much memory it needs.

Conversations grow by a message of a kilobyte and its reply with each call, and one call in CALLS_A_CONVERSATION begins
a new one. The recorder is the process that `holdfast serve` starts; what it takes to start is measured and subtracted.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.improve_cpu import TEXT
from holdfast.cli.serve.recorder_process import RECORDER_MODULE
from holdfast.gateway.exchange import GatewayCaller
from holdfast.gateway.recording.spool import SpoolWriter
from holdfast.gateway.recording.worker_process import EndMessage, RecorderSetup, RequestMessage, write_frame
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
    Load("2 KB", 1, 1_000, 3, 2_000),
    Load("100 KB", 81, 50, CALLS_A_CONVERSATION, 500),
    Load("1 MB", 981, 10, CALLS_A_CONVERSATION, 100),
    Load("1,000 conversations of 200 KB", 197, 1_000, 2),
)


class Figures(NamedTuple):
    seconds: float
    cpu_seconds: float
    peak_mb: float


def run() -> Iterator[tuple[str, str]]:
    for store in (_sqlite, _postgres):
        try:
            with store() as url:
                started = record(url, Load("", 1, 1, 1))
            for load in LOADS:
                with store() as url:
                    yield _measure(load, store.__name__.strip("_"), url, started)
        except ImportError as error:
            yield "PostgreSQL", f"not measured, {error.name} is not installed"


def _measure(load: Load, store: str, url: str, started: Figures) -> tuple[str, str]:
    figures = record(url, load)
    calls = load.conversations * load.calls
    seconds, cpu = figures.seconds - started.seconds, figures.cpu_seconds - started.cpu_seconds
    bar = f" (at least {load.rate_min:,})" if load.rate_min else ""
    rate = f"{calls / seconds:,.0f} calls/s{bar}, {cpu / calls * 1_000:.2f} ms of CPU a call"
    return f"{load.title}, {store}, {calls:,} calls", f"{rate}, {figures.peak_mb:.0f} MB at most"


def record(url: str, load: Load) -> Figures:
    """Records a spool in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        fill_spool(spool, load)
        began = time.perf_counter()
        command = [sys.executable, "-P", "-m", RECORDER_MODULE]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stdin is not None
        write_frame(process.stdin, RecorderSetup(url, simulated=True, spool=str(spool)))
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.stdin.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or spool.exists():
            raise RuntimeError("the recorder has not recorded the spool")
    with open_store(url) as store:
        calls = store.read_facts().calls
    if calls < load.conversations * load.calls:
        raise RuntimeError(f"the recorder has recorded {calls} calls only")
    return Figures(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def fill_spool(folder: Path, load: Load) -> None:
    writer = SpoolWriter(folder)
    encode = msgspec.msgpack.Encoder().encode
    for call in range(load.calls):
        for conversation in range(load.conversations):
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
