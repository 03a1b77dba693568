"""Bounded queue between forwarded calls and the recorder: when recording is slow, records are lost, never time."""

from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import Generic, TypeVar

# Both limits are needed: many small records, or few with bodies of megabytes.
NOTES_MAX = 10_000
BYTES_MAX = 256 * 1024 * 1024
CLOSING_SECONDS_MAX = 5.0
RESTING_SECONDS = 0.05

T = TypeVar("T")


class Notes(Generic[T]):
    """One thread works on the items in order. Items that do not fit are dropped and counted."""

    def __init__(self, work: Callable[[T], None], *, notes_max: int = NOTES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._work = work
        self._notes_max = notes_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = Condition()
        self._closed = False
        self._closing = Event()
        self._busy = False
        self._thread: Thread | None = None
        self.dropped = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, note: T, size_bytes: int) -> bool:
        """Returns whether the item was accepted."""
        with self._changed:
            full = len(self._waiting) >= self._notes_max or self._bytes + size_bytes > self._bytes_max
            if full or self._closed:
                self.dropped += 1
                return False
            self._waiting.append((note, size_bytes))
            self._bytes += size_bytes
            if self._thread is None:
                self._thread = Thread(target=self._run, name="holdfast-gateway-record", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def wait_until_empty(self, seconds_max: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, seconds_max)

    def close(self) -> None:
        """Waits for the queued items to be worked on, for up to CLOSING_SECONDS_MAX."""
        with self._changed:
            self._closed = True
            self._closing.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSING_SECONDS_MAX)

    def _run(self) -> None:
        while self._has_work():
            # An item arrives when its request goes out. Yield the processor to the call until its response begins.
            self._closing.wait(RESTING_SECONDS)
            while (note := self._next()) is not None:
                self._work(note)

    def _has_work(self) -> bool:
        """Waits for an item; false if the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return bool(self._waiting)

    def _next(self) -> T | None:
        with self._changed:
            self._busy = bool(self._waiting)
            if not self._busy:
                self._changed.notify_all()
                return None
            note, size_bytes = self._waiting.popleft()
            self._bytes -= size_bytes
            return note


class AtOnce(Notes[T]):
    """Works on each item synchronously, for callers that have nothing else to do."""

    def put(self, note: T, size_bytes: int) -> bool:
        self._work(note)
        return True
