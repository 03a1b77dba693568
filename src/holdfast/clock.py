"""Where time, ids and chance come from; everywhere else they are arguments."""

import os
import random
import time
from collections.abc import Awaitable, Callable
from threading import Lock

Clock = Callable[[], float]
"""Seconds since the epoch, UTC."""

Sleep = Callable[[float], Awaitable[None]]
"""Wait for so many seconds."""

NewId = Callable[[float], str]
"""A fresh identifier for something that happens at the given time."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80


Chance = Callable[[], float]
"""A number from 0 to 1, another one each time."""


def system_clock() -> float:
    return time.time()


def system_chance() -> float:
    return random.random()


class ManualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds} s")
        self.now += seconds


class Ulids:
    """Identifiers that sort by the time they were made, strictly rising within one process."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._last = -1
        self._lock = Lock()

    def __call__(self, at: float) -> str:
        chance = int.from_bytes(self._random_bytes(_RANDOM_BITS // 8), "big")
        with self._lock:
            value = max((int(at * 1000) << _RANDOM_BITS) | chance, self._last + 1)
            self._last = value
        return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


new_ulid: NewId = Ulids()
"""The ids of this process."""


class CountedIds:
    """Identifiers that depend on nothing but how many were asked for; for tests and goldens."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._count = 0

    def __call__(self, at: float) -> str:
        del at
        self._count += 1
        return f"{self._prefix}-{self._count:06d}"
