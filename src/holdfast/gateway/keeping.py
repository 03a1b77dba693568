"""Caches of forwarded conversations, kept alive while their clients are silent, for no more than they are worth."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from decimal import Decimal

from holdfast.catalog.lookup import utc_date
from holdfast.clock import Clock
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.headers import request_headers
from holdfast.gateway.letters import Letter
from holdfast.gateway.line import CutError, Lines
from holdfast.gateway.reply import Headers
from holdfast.gateway.routing import Upstream
from holdfast.planning.pings import MARGIN_SECONDS

CONVERSATIONS_MAX = 64
LOOK_SECONDS = 5.0
ANSWER_BYTES_MAX = 1_000_000
ANSWER_SECONDS_MAX = 30.0

Pinged = Callable[[Exchange, Letter, bytes, float], None]
"""Told of a request that asked for nothing and was answered: whose, what it was, the answer, when it was sent."""


class _Kept:
    def __init__(self, letter: Letter, exchange: Exchange, upstream: Upstream, head: tuple[bytes, Headers]) -> None:
        self.letter = letter
        self.exchange = exchange
        self.upstream = upstream
        self.wanted, self.headers = head
        self.used_at = exchange.asked_at
        self.times = 0


class Keeper:
    """Sends the last request of a silent conversation again, for no answer, shortly before its cache lapses.

    It stops after as many as one return can pay for, and where a day's money is spent. What it needs for that, the
    client's credential too, lives in memory only, and no longer than the conversation is kept.
    """

    def __init__(self, *, clock: Clock, usd_a_day_max: Decimal, pinged: Pinged) -> None:
        self._clock = clock
        self._usd_a_day_max = usd_a_day_max
        self._pinged = pinged
        self._lines = Lines()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._spent: tuple[date, Decimal] = utc_date(0.0), Decimal(0)
        self._watching: asyncio.Task[None] | None = None

    @property
    def kept(self) -> int:
        """How many conversations are kept alive now."""
        return len(self._kept)

    def went_on(self, digests: frozenset[str]) -> None:
        """A request was made: those that it goes on from need no keeping any longer."""
        for tail in [tail for tail in self._kept if tail in digests]:
            del self._kept[tail]

    def keep(self, letter: Letter, exchange: Exchange, upstream: Upstream, head: tuple[bytes, Headers]) -> None:
        """`head` are the path and the headers with which the request went out."""
        self._kept[letter.tail] = _Kept(letter, exchange, upstream, head)
        self._kept.move_to_end(letter.tail)
        while len(self._kept) > CONVERSATIONS_MAX:
            self._kept.popitem(last=False)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        self._kept.clear()
        if self._watching is not None:
            self._watching.cancel()
        self._lines.close()

    async def _watch(self) -> None:
        while self._kept:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> int:
        """Send what is due now; how many were sent."""
        now, sent = self._clock(), 0
        for tail, one in list(self._kept.items()):
            due = one.used_at + one.letter.ttl_seconds - MARGIN_SECONDS
            if now < due:
                continue
            lapsed = now >= one.used_at + one.letter.ttl_seconds
            if lapsed or one.times >= one.letter.times_max or not self._may_spend(one.letter.cost_usd, now):
                del self._kept[tail]
                continue
            one.times += 1
            one.used_at = now
            sent += 1
            if not await self._send(one, now):
                self._kept.pop(tail, None)
        return sent

    def _may_spend(self, cost_usd: Decimal, now: float) -> bool:
        day, spent = self._spent
        if day != utc_date(now):
            day, spent = utc_date(now), Decimal(0)
        if spent + cost_usd > self._usd_a_day_max:
            return False
        self._spent = day, spent + cost_usd
        return True

    async def _send(self, one: _Kept, now: float) -> bool:
        """Whether it was answered as it should be."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                status, answer = await self._answered(one)
        except (CutError, TimeoutError):
            return False
        if status != 200:
            return False
        self._pinged(one.exchange, one.letter, answer, now)
        return True

    async def _answered(self, one: _Kept) -> tuple[int, bytes]:
        line = await self._lines.take(one.upstream)
        try:
            line.ask("POST", one.wanted, _plain_headers(one.headers, one.upstream, len(one.letter.body)))
            await line.say(one.letter.body)
            line.said()
            head = await line.head()
            parts, size = [], 0
            while not line.is_whole and size <= ANSWER_BYTES_MAX:
                parts.append(await line.chunk())
                size += len(parts[-1])
            return head.status, b"".join(parts)
        finally:
            self._lines.give_back(one.upstream, line)


def _plain_headers(headers: Headers, upstream: Upstream, size_bytes: int) -> Headers:
    """As the client's, for a body of that length, and for an answer that is not packed."""
    left_out = (b"content-length", b"transfer-encoding", b"accept-encoding")
    kept = [(name, value) for name, value in headers if name not in left_out]
    return [*request_headers(kept, upstream.authority), (b"content-length", b"%d" % size_bytes)]
