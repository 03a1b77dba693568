"""A response cache: complete replies stored for a short time, for requests that are byte-identical.

A cache belongs to one process; sessions in any thread can share it.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.errors import UserError
from holdfast.providers.adapter import StreamDecoder
from holdfast.types.reply import Delta, Reply, ReplyFinished, ReplyStarted, StopReason
from holdfast.types.usage import Usage

STORED_SECONDS = 30.0
"""Default storage time: seed 002's completion cache has the same."""

# Bounds of what one process holds in memory.
RESPONSES_MAX = 256
RESPONSE_CACHE_BYTES_MAX = 32_000_000

REPLY_BYTES_MAX = 2_000_000
"""Longer replies are not stored: they are rare, and would evict everything else."""

_CHUNK_OVERHEAD_BYTES = 64  # More than CPython adds per bytes object, so that many tiny chunks count.
_WHOLE: tuple[StopReason, ...] = ("end_turn", "max_tokens", "stop_sequence", "tool_use")


class _Entry(msgspec.Struct, frozen=True):
    at: float
    until: float
    chunks: tuple[bytes, ...]
    size_bytes: int


class ResponseCache:
    """Replies as the raw bytes that the provider sent; the oldest are evicted when the cache is full."""

    def __init__(self, *, entries_max: int = RESPONSES_MAX, bytes_max: int = RESPONSE_CACHE_BYTES_MAX) -> None:
        if entries_max < 1 or bytes_max < 1:
            raise UserError("a response cache needs entries_max and bytes_max of at least 1")
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.size_bytes = 0

    def find(self, key: str, at: float, seconds: float) -> tuple[bytes, ...] | None:
        """The reply stored less than `seconds` ago, unless its own storage time has passed."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or at < entry.at:
                return None
            if at >= entry.until:
                self._drop(key)
                return None
            return entry.chunks if at - entry.at < seconds else None

    def store(self, key: str, chunks: Sequence[bytes], at: float, seconds: float) -> bool:
        """Store a reply, replacing an earlier one to the same request; False if it is too large."""
        size = sum(len(chunk) + _CHUNK_OVERHEAD_BYTES for chunk in chunks)
        if size > min(self._bytes_max, REPLY_BYTES_MAX):
            return False
        with self._lock:
            if key in self._entries:
                self._drop(key)
            while self._entries and (self._is_full(size) or next(iter(self._entries.values())).until <= at):
                self._drop(next(iter(self._entries)))
            self._entries[key] = _Entry(at, at + seconds, tuple(chunks), size)
            self.size_bytes += size
        return True

    def _is_full(self, more_bytes: int) -> bool:
        return len(self._entries) >= self._entries_max or self.size_bytes + more_bytes > self._bytes_max

    def _drop(self, key: str) -> None:
        self.size_bytes -= self._entries.pop(key).size_bytes


class ResponseCacheConfig(msgspec.Struct, frozen=True):
    """The response cache that a session uses, and for how long it stores replies."""

    cache: ResponseCache
    seconds: float = STORED_SECONDS

    def find_deltas(self, key: str, decoder: StreamDecoder, at: float) -> tuple[Delta, ...]:
        """The deltas of the reply stored under this key, with zero usage; empty if none is stored."""
        chunks = self.cache.find(key, at, self.seconds) or ()
        return tuple(_without_usage(delta) for chunk in chunks for delta in decoder.feed(chunk))

    def store_reply(self, key: str, chunks: Sequence[bytes], reply: Reply, at: float) -> bool:
        """Store the reply for identical requests, if it is worth it; returns whether it was stored."""
        return bool(chunks) and is_storable_reply(reply) and self.cache.store(key, chunks, at, self.seconds)


class RawResponse:
    """Collects the raw response to one request, until it is too large to be stored."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._left_bytes = REPLY_BYTES_MAX

    def add_chunk(self, chunk: bytes) -> None:
        self._left_bytes -= len(chunk)
        if self._left_bytes >= 0:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """The whole response, or nothing if it was too large."""
        return tuple(self._chunks)


def is_storable_reply(reply: Reply) -> bool:
    """Whether the reply is complete and not empty; a refused or interrupted one may succeed next time."""
    return bool(reply.content) and reply.stop_reason in _WHOLE


def _without_usage(delta: Delta) -> Delta:
    match delta:
        case ReplyStarted():
            return replace(delta, usage=Usage())
        case ReplyFinished(reply=reply):
            return ReplyFinished(replace(reply, usage=Usage()))
        case _:
            return delta
