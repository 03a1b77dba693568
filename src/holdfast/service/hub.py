"""Who hears of events as they come, from whichever process: one look at the store for all listeners.

A listener that is slow costs no memory: what it has not seen is read again from the store, as far back as a limit, and
what lies further back is left out and said to be.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.events.records import Feed, Placed

POLL_SECONDS = 0.2
QUIET_SECONDS_MAX = 15.0
RING_EVENTS_MAX = 1_000
LAG_PLACES_MAX = 10_000
PAGE_EVENTS = 128
GAP_SECONDS_MAX = 2.0
"""How long a place may be missing before it is taken to stay empty: another program may be about to fill it."""


class Dropped(msgspec.Struct, frozen=True):
    """Places behind `after` up to `until` were left out for a listener that was too far behind."""

    after: int
    until: int


class Quiet(msgspec.Struct, frozen=True):
    """Nothing has happened for a while."""


Heard = Placed | Dropped | Quiet


class Hub:
    """Looks at the store only while somebody listens. All methods belong to one event loop."""

    def __init__(
        self,
        feed: Feed,
        clock: Clock,
        *,
        poll_seconds: float = POLL_SECONDS,
        lag_places_max: int = LAG_PLACES_MAX,
        ring_events_max: int = RING_EVENTS_MAX,
    ) -> None:
        self._feed = feed
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._lag_places_max = lag_places_max
        self._ring: deque[Placed] = deque(maxlen=ring_events_max)
        self._floor = 0  # Everything behind this place, up to the newest, is in the ring.
        self._newest: int | None = None
        self._gap: tuple[int, float] | None = None
        self.listeners = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: StoreError | None = None
        self._closed = False

    @property
    def place(self) -> int | None:
        """The newest place that was looked at; None before the first listener."""
        return self._newest

    @property
    def is_looking(self) -> bool:
        return self._task is not None

    async def listen(self, after: int | None = None, *, to_the_end: bool = False) -> AsyncGenerator[Heard, None]:
        """Everything behind a place, then everything as it comes; without a place, from now on.

        Ends at `close`: at once, or with the newest event that was seen until then.
        """
        self.listeners += 1
        try:
            place = await self._start() if after is None else after
            await self._start()
            while not self._closed or (to_the_end and place < (self._newest or 0)):
                newest = self._newest or 0
                if newest - place > self._lag_places_max:
                    yield Dropped(place, newest - self._lag_places_max)
                    place = newest - self._lag_places_max
                for placed in await self._page(place, newest):
                    yield placed
                    place = placed.place
                if place >= (self._newest or 0) and not await self._wait():
                    yield Quiet()
        finally:
            self.listeners -= 1
            if not self.listeners:
                await self._stop()

    async def _start(self) -> int:
        if self._task is None:
            newest = await asyncio.to_thread(self._feed.newest_place)
            if self._task is None and not self._closed:
                self._newest = self._floor = newest
                self._ring.clear()
                self._failure = None
                self._task = asyncio.ensure_future(self._look())
        return self._newest or 0

    async def _page(self, place: int, newest: int) -> list[Placed]:
        if place >= newest:
            return []
        if place >= self._floor:
            return [placed for placed in self._ring if placed.place > place]
        page = await asyncio.to_thread(self._feed.behind, place, limit=PAGE_EVENTS)
        found = [placed for placed in page if placed.place <= newest]
        # Nothing is left where sessions were deleted.
        return found or [Placed(newest, None)]

    async def _wait(self) -> bool:
        """Whether something came before it has been quiet for long."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS_MAX):
                await self._news.wait()
                return True
        return False

    async def _look(self) -> None:
        try:
            while not self._closed:
                if not await self._take():
                    await asyncio.sleep(self._poll_seconds)
        except StoreError as error:
            self._failure = error
            self._tell()

    async def _take(self) -> bool:
        """Take what is new, as far as no place before it can still be filled."""
        before = self._newest or 0
        place = before
        for placed in await asyncio.to_thread(self._feed.behind, before, limit=PAGE_EVENTS):
            if placed.place != place + 1 and self._may_be_filled(place + 1):
                break
            if len(self._ring) == self._ring.maxlen:
                self._floor = self._ring[0].place
            self._ring.append(placed)
            place = placed.place
        self._newest = place
        if place > before:
            self._tell()
        return place > before

    def _may_be_filled(self, place: int) -> bool:
        if self._gap is None or self._gap[0] != place:
            self._gap = place, self._clock()
        return self._clock() - self._gap[1] < GAP_SECONDS_MAX

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Every listener comes to its end."""
        self._closed = True
        self._tell()
        await self._stop()
