"""What all wires of one event loop share, host by host: connections, and a place in line."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

CONNECTIONS_MAX = 100


class Lane:
    """Requests that wait their turn, first come, first served."""

    def __init__(self) -> None:
        self.under_way = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def place(self, requests_max: int) -> AsyncIterator[None]:
        """Held while a request is under way; waits as long as there are `requests_max` others."""
        await self._enter(requests_max)
        try:
            yield
        finally:
            self.under_way -= 1
            self._admit()

    async def _enter(self, requests_max: int) -> None:
        if self.under_way < requests_max and not self._waiting:
            self.under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((requests_max, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # Whoever leaves just as a place is given to him gives it back.
            self.under_way -= turn.done() and not turn.cancelled()
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting:
            requests_max, turn = self._waiting[0]
            if not turn.done() and self.under_way >= requests_max:
                return
            self._waiting.popleft()
            if not turn.done():
                self.under_way += 1
                turn.set_result(None)


class Host:
    """One host's connections, opened with the first request and closed with the last wire."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.wires = 0
        self._session: aiohttp.ClientSession | None = None

    @property
    def connections(self) -> aiohttp.ClientSession:
        if self._session is None:
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


_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Host]] = WeakKeyDictionary()


def take_host(url: str) -> Host:
    """The host of this URL, shared with every wire of the running loop that speaks to it; to be given back."""
    host = _hosts.setdefault(asyncio.get_running_loop(), {}).setdefault(_origin(url), Host())
    host.wires += 1
    return host


async def give_back_host(url: str) -> None:
    known = _hosts.get(asyncio.get_running_loop(), {})
    host = known.get(_origin(url))
    if host is None:
        return
    host.wires -= 1
    if host.wires <= 0:
        del known[_origin(url)]
        await host.aclose()


def hosts_in_use() -> int:
    """How many hosts the wires of the running loop still hold."""
    return len(_hosts.get(asyncio.get_running_loop(), {}))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
