"""Sources of time, ids and randomness; everywhere else they are arguments."""

import os
import random
import time
from collections.abc import Awaitable, Callable
from threading import Lock

Clock = Callable[[], float]
"""Seconds since the epoch, UTC."""

Sleep = Callable[[float], Awaitable[None]]
"""Waits for the given number of seconds."""

NewId = Callable[[float], str]
"""A new identifier for something that happens at the given time."""

# The ULID format: 48 bits of milliseconds and 80 random bits, in Crockford's base32 (no I, L, O, U).
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_CROCKFORD_PAIRS = tuple(first + second for first in _CROCKFORD for second in _CROCKFORD)

RANDOM_BYTES_AT_ONCE = 1_000

RandomSource = Callable[[], float]
"""A random number from 0 to 1."""


def system_clock() -> float:
    return time.time()


def system_random() -> float:
    return random.random()


class ManualClock:
    """A clock that moves only by `advance`; for tests and simulations."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds} s")
        self.now += seconds


class UlidGenerator:
    """ULIDs: identifiers that sort by creation time, strictly increasing within one process."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._last = -1
        self._lock = Lock()

    def __call__(self, at: float) -> str:
        randomness = int.from_bytes(self._random_bytes(_RANDOM_BITS // 8), "big")
        with self._lock:
            # Two ids of one millisecond, or a clock that was set back, must not sort before the previous id.
            value = max((int(at * 1000) << _RANDOM_BITS) | randomness, self._last + 1)
            self._last = value
        return "".join([_CROCKFORD_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


new_ulid: NewId = UlidGenerator()
"""The id generator of this process."""


class BufferedRandomBytes:
    """Random bytes of the system, read many at a time; for a process that makes many ids and never forks."""

    def __init__(self) -> None:
        self._buffer = b""

    def __call__(self, count: int) -> bytes:
        if len(self._buffer) < count:
            self._buffer = os.urandom(RANDOM_BYTES_AT_ONCE)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


class CountingIds:
    """Identifiers that are a plain counter; for tests and goldens."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._count = 0

    def __call__(self, at: float) -> str:
        del at
        self._count += 1
        return f"{self._prefix}-{self._count:06d}"
