"""Per host, the connections and the request queue that all transports of one event loop share, and their limits."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

if TYPE_CHECKING:
    import aiohttp

CONNECTIONS_MAX = 100
REPLY_BYTES_MAX = 64 * 1024 * 1024


class Timeouts(msgspec.Struct, frozen=True):
    """A response that is not streamed sends no byte before it is complete, which can take minutes."""

    connect_seconds: float = 10.0
    first_byte_seconds: float = 600.0
    idle_seconds: float = 120.0


class RequestQueue:
    """A queue that limits concurrent requests, first come, first served."""

    def __init__(self) -> None:
        self.in_progress = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def slot(self, requests_max: int) -> AsyncIterator[None]:
        """Hold a slot while a request is in progress; waits while `requests_max` others are."""
        await self._enter(requests_max)
        try:
            yield
        finally:
            self.in_progress -= 1
            self._admit()

    async def _enter(self, requests_max: int) -> None:
        # Waiting requests go first: a new one must not overtake them.
        if self.in_progress < requests_max and not self._waiting:
            self.in_progress += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((requests_max, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # Cancelled in the moment in which the slot was granted: return it.
            self.in_progress -= turn.done() and not turn.cancelled()
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting:
            requests_max, turn = self._waiting[0]
            if not turn.done() and self.in_progress >= requests_max:
                return
            self._waiting.popleft()
            if not turn.done():
                self.in_progress += 1
                turn.set_result(None)


class PooledHost:
    """One host's connections, opened by the first request and closed with the last transport."""

    def __init__(self) -> None:
        self.queue = RequestQueue()
        self.transports = 0
        self._session: aiohttp.ClientSession | None = None

    @property
    def connections(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp  # noqa: PLC0415 - loading it takes longer than the rest of a session, and loads certificates

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "holdfast"},
            )
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, PooledHost]] = WeakKeyDictionary()


def acquire_host(url: str) -> PooledHost:
    """The host of this URL, shared by all transports of the running loop. Each call needs a `release_host`."""
    host = _hosts.setdefault(asyncio.get_running_loop(), {}).setdefault(_origin(url), PooledHost())
    host.transports += 1
    return host


async def release_host(url: str) -> None:
    hosts = _hosts.get(asyncio.get_running_loop(), {})
    host = hosts.get(_origin(url))
    if host is None:
        return
    host.transports -= 1
    if host.transports <= 0:
        del hosts[_origin(url)]
        await host.aclose()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
