"""Distributes new events of all processes to live listeners, with one reader of the store for all of them.

It reads when the store notifies it, and otherwise from time to time.

A slow listener costs no memory: it catches up from the store, up to a limit. Beyond the limit events are skipped, and
the listener is notified.
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import takewhile

import msgspec

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.events.records import EventFeed, FeedNotifications, OpenNotifications, PositionedEvent

POLL_SECONDS = 0.2
NOTIFIED_POLL_SECONDS = 5.0
"""How often to read while the store notifies: a notification may be lost."""

FOLLOW_UP_SECONDS = 0.1
"""When to read once more after a notification: a writer does not notify of what it appends shortly after."""

READ_SECONDS_MIN = 0.02

# Proxies close idle connections, commonly after 30 to 60 seconds; a comment line keeps the feed open.
QUIET_SECONDS_MAX = 15.0
RING_EVENTS_MAX = 1_000
LAG_POSITIONS_MAX = 10_000
PAGE_EVENTS = 128
MISSING_POSITION_SECONDS_MAX = 2.0
"""How long to wait for a missing sequence number: another process may have reserved it and not committed yet."""


class SkippedEvents(msgspec.Struct, frozen=True):
    """Events after `after`, up to and including `until`, were skipped because the listener was too far behind."""

    after: int
    until: int


class NoEvents(msgspec.Struct, frozen=True):
    """No event for QUIET_SECONDS_MAX; lets the feed send a keep-alive comment."""


FeedItem = PositionedEvent | SkippedEvents | NoEvents


class EventHub:
    """Reads the store only while there are listeners. All methods must be called from one event loop."""

    def __init__(
        self,
        feed: EventFeed,
        clock: Clock,
        *,
        poll_seconds: float = POLL_SECONDS,
        lag_positions_max: int = LAG_POSITIONS_MAX,
        ring_events_max: int = RING_EVENTS_MAX,
    ) -> None:
        self._feed = feed
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._lag_positions_max = lag_positions_max
        self._ring: deque[PositionedEvent] = deque(maxlen=ring_events_max)
        self._floor = 0  # All events after this position, up to the newest, are in the ring.
        self._newest: int | None = None
        self._gap: tuple[int, float] | None = None
        self._is_at_gap = False
        self.open_notifications: OpenNotifications | None = None
        self._notifications: FeedNotifications | None = None
        self._woken, self._follows_up = asyncio.Event(), False
        self.listener_count = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: StoreError | None = None
        self._closed = False

    @property
    def position(self) -> int | None:
        """The newest position that was read; None before the first listener."""
        return self._newest

    async def listen(self, after: int | None = None, *, to_the_end: bool = False) -> AsyncGenerator[FeedItem, None]:
        """Yields the events after a position, then new ones as they arrive; without a position, only new ones.

        Ends at `close`: at once, or with `to_the_end` after the newest event read until then.
        """
        self.listener_count += 1
        try:
            position = await self._start() if after is None else after
            # Also with a position given; the poll may not be running yet.
            await self._start()
            while not self._closed or (to_the_end and position < (self._newest or 0)):
                newest = self._newest or 0
                if newest - position > self._lag_positions_max:
                    yield SkippedEvents(position, newest - self._lag_positions_max)
                    position = newest - self._lag_positions_max
                for positioned in await self._page(position, newest):
                    yield positioned
                    position = positioned.position
                if position >= (self._newest or 0) and not await self._wait():
                    yield NoEvents()
        finally:
            self.listener_count -= 1
            if not self.listener_count:
                await self._stop()

    async def _start(self) -> int:
        if self._task is None:
            newest = await asyncio.to_thread(self._feed.newest_position)
            if self._task is None and not self._closed:
                self._newest = self._floor = newest
                self._ring.clear()
                self._failure = None
                if self.open_notifications is not None:
                    wake = functools.partial(_set_in, asyncio.get_running_loop(), self._woken)
                    self._notifications = self.open_notifications(wake)
                self._task = asyncio.ensure_future(self._poll())
        return self._newest or 0

    async def _page(self, position: int, newest: int) -> list[PositionedEvent]:
        if position >= newest:
            return []
        if position >= self._floor:
            newer = list(takewhile(lambda positioned: positioned.position > position, reversed(self._ring)))
            return newer[::-1]
        page = await asyncio.to_thread(self._feed.events_after, position, limit=PAGE_EVENTS)
        events = [positioned for positioned in page if positioned.position <= newest]
        # Empty if the sessions were deleted; the placeholder moves the listener forward.
        return events or [PositionedEvent(newest, None)]

    async def _wait(self) -> bool:
        """Waits for news; false after QUIET_SECONDS_MAX without any."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS_MAX):
                await self._news.wait()
                return True
        return False

    async def _poll(self) -> None:
        try:
            while not self._closed:
                if not await self._read_new():
                    await self._wait_for_events()
        except StoreError as error:
            self._failure = error
            self._notify()

    async def _wait_for_events(self) -> None:
        """Until the store notifies, or it is time to read without that."""
        is_notified = self._notifications is not None and self._notifications.is_connected
        seconds = self._poll_seconds
        if is_notified and not self._is_at_gap:
            seconds = FOLLOW_UP_SECONDS if self._follows_up else NOTIFIED_POLL_SECONDS
        self._follows_up = False
        await asyncio.sleep(READ_SECONDS_MIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
                self._woken.clear()
                self._follows_up = True

    async def _read_new(self) -> bool:
        """Reads new events up to the first gap that another process may still fill; returns whether there were any."""
        before = self._newest or 0
        position = before
        self._is_at_gap = False
        for positioned in await asyncio.to_thread(self._feed.events_after, before, limit=PAGE_EVENTS):
            if positioned.position != position + 1 and self._may_be_filled(position + 1):
                self._is_at_gap = True
                break
            if len(self._ring) == self._ring.maxlen:
                self._floor = self._ring[0].position
            self._ring.append(positioned)
            position = positioned.position
        # Advance only to here: after a gap, a listener would miss the event that fills it.
        self._newest = position
        if position > before:
            self._notify()
        return position > before

    def _may_be_filled(self, position: int) -> bool:
        if self._gap is None or self._gap[0] != position:
            self._gap = position, self._clock()
        return self._clock() - self._gap[1] < MISSING_POSITION_SECONDS_MAX

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _stop(self) -> None:
        notifications, self._notifications = self._notifications, None
        if notifications is not None:
            notifications.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Ends all listeners."""
        self._closed = True
        self._notify()
        await self._stop()


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    # RuntimeError: the event loop is closed, so nobody waits there any longer.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)
