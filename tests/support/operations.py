"""Counts what an operation executes, so that how its cost grows can be tested on a busy machine.

An operation is an executed bytecode instruction of the package. What a C function does is not seen: copying,
encoding or decoding bytes is one operation, however long they are. `counting_steps` counts what SQLite does, and
`counting_hashed_bytes` what is hashed.
"""

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.stores.memory import MemoryStore, SharedConnection
from holdfast.stores.sql.connection import SqlReader

PACKAGE = str(Path(holdfast.__file__).parent)
# The other end of a test reads whole requests, as providers do.
OTHER_ENDS = (f"{PACKAGE}/simulator/", f"{PACKAGE}/testing/", f"{PACKAGE}/cachemodel/")


class OperationCounter:
    """Counts in the thread that asks for it and in threads that started while it was open."""

    def __init__(self) -> None:
        self._counts: Counter[str] | None = None

    @contextmanager
    def open(self) -> Iterator["OperationCounter"]:
        before = threading.gettrace()
        threading.settrace(self._trace)
        try:
            yield self
        finally:
            threading.settrace(before)

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """The operations of a block, by function."""
        before, counts = sys.gettrace(), Counter[str]()
        self._counts = counts
        sys.settrace(self._trace)
        try:
            yield counts
        finally:
            sys.settrace(before)
            self._counts = None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        counts, code = self._counts, frame.f_code
        if counts is None or not code.co_filename.startswith(PACKAGE) or code.co_filename.startswith(OTHER_ENDS):
            return None
        name = f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}"
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def count(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                counts[name] += 1
            return count

        return count


class Total:
    """A count that grows while a block runs."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, count: int) -> None:
        self.count += count


@contextmanager
def counting_steps(store: MemoryStore) -> Iterator[Total]:
    """The instructions of SQLite's virtual machine while a block runs: about three for each row that is looked at."""
    assert isinstance(store._reads, SqlReader)
    assert isinstance(store._reads._pool, SharedConnection)
    connection, total = store._reads._pool.connection, Total()
    connection.set_progress_handler(lambda: total.add(1), 1)
    try:
        yield total
    finally:
        connection.set_progress_handler(None, 0)


@contextmanager
def counting_hashed_bytes() -> Iterator[Total]:
    """The bytes of which SHA-256 digests are computed while a block runs, in any thread."""
    total, sha256 = Total(), hashlib.sha256

    def count_and_hash(data: bytes = b"") -> Any:
        total.add(len(data))
        return sha256(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "sha256", count_and_hash)
        yield total
