"""Whole replies that are kept for a moment, for requests that are equal to the byte.

A cache is for one process; sessions in any thread can share it.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from holdfast.canonical.reply import Reply, StopReason
from holdfast.errors import UserError

COMPLETION_SECONDS = 30.0
ENTRIES_MAX = 256
BYTES_MAX = 32_000_000

REPLY_BYTES_MAX = 2_000_000
"""What is longer is not kept: it is rare, and would drive out everything else."""

_CHUNK_OVERHEAD_BYTES = 64
_WHOLE: tuple[StopReason, ...] = ("end_turn", "max_tokens", "stop_sequence", "tool_use")


class _Entry(msgspec.Struct, frozen=True):
    at: float
    until: float
    chunks: tuple[bytes, ...]
    size_bytes: int


class CompletionCache:
    """Replies in their provider's own bytes, as they came; the oldest go where there are too many."""

    def __init__(self, *, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        if entries_max < 1 or bytes_max < 1:
            raise UserError("a cache of replies takes entries_max and bytes_max of at least 1")
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def find(self, key: str, at: float, seconds: float) -> tuple[bytes, ...] | None:
        """What was kept less than so many seconds ago, and no longer than it was to be kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or at < entry.at:
                return None
            if at >= entry.until:
                self._drop(key)
                return None
            return entry.chunks if at - entry.at < seconds else None

    def keep(self, key: str, chunks: Sequence[bytes], at: float, seconds: float) -> bool:
        """Whether the reply is kept now, in place of what was kept for the same request."""
        size = sum(len(chunk) + _CHUNK_OVERHEAD_BYTES for chunk in chunks)
        if size > min(self._bytes_max, REPLY_BYTES_MAX):
            return False
        with self._lock:
            if key in self._entries:
                self._drop(key)
            while self._entries and (self._is_full(size) or next(iter(self._entries.values())).until <= at):
                self._drop(next(iter(self._entries)))
            self._entries[key] = _Entry(at, at + seconds, tuple(chunks), size)
            self._size_bytes += size
        return True

    def _is_full(self, more_bytes: int) -> bool:
        return len(self._entries) >= self._entries_max or self._size_bytes + more_bytes > self._bytes_max

    def _drop(self, key: str) -> None:
        self._size_bytes -= self._entries.pop(key).size_bytes


class Completions(msgspec.Struct, frozen=True):
    """Where a session finds replies and keeps its own, and for how long."""

    cache: CompletionCache
    seconds: float = COMPLETION_SECONDS


class Heard:
    """What a provider sends in answer to one request, as long as it is not too long to be kept."""

    def __init__(self, *, listening: bool) -> None:
        self._chunks: list[bytes] = []
        self._left_bytes = REPLY_BYTES_MAX if listening else -1

    def hear(self, chunk: bytes) -> None:
        self._left_bytes -= len(chunk)
        if self._left_bytes >= 0:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """All of it, or nothing."""
        return tuple(self._chunks)


def is_worth_keeping(reply: Reply) -> bool:
    """Whether the reply is whole and says something; what was refused or broke off may go better next time."""
    return bool(reply.content) and reply.stop_reason in _WHOLE
