"""Keeps the caches of idle forwarded conversations alive with pings, as long as that costs less than a miss."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from decimal import Decimal

from holdfast.catalog.lookup import utc_date
from holdfast.clock import Clock
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.http.connection import ConnectionCutError, UpstreamPool
from holdfast.gateway.http.headers import Headers, filter_request_headers
from holdfast.gateway.rewrite.rewriter import GatewayPing
from holdfast.gateway.routes import Upstream
from holdfast.planning.keep_alive import PING_MARGIN_SECONDS

# Each idle conversation holds its last request body, up to 4 MiB, in memory.
IDLE_CONVERSATIONS_MAX = 64
KEEP_ALIVE_CHECK_SECONDS = 5.0
GATEWAY_PING_RESPONSE_BYTES_MAX = 1_000_000
PING_SECONDS_MAX = 30.0

OnPing = Callable[[Exchange, GatewayPing, bytes, float], None]
"""Called with exchange, ping, response body and send time of each answered ping."""


class _IdleConversation:
    def __init__(self, ping: GatewayPing, exchange: Exchange, upstream: Upstream, head: tuple[bytes, Headers]) -> None:
        self.ping = ping
        self.exchange = exchange
        self.upstream = upstream
        self.path, self.headers = head
        self.used_at = exchange.started_at
        self.pings_sent = 0


class GatewayKeepAlive:
    """Repeats the last request of an idle conversation with no output, shortly before its cache entry expires.

    It stops after as many pings as one saved cache write pays for, and when the daily limit is spent. The request and
    the client's credential are held in memory only, and only while the conversation is kept alive.
    """

    def __init__(self, *, clock: Clock, usd_a_day_max: Decimal, on_ping: OnPing) -> None:
        self._clock = clock
        self._usd_a_day_max = usd_a_day_max
        self._on_ping = on_ping
        self._connections = UpstreamPool()
        self._idle: OrderedDict[str, _IdleConversation] = OrderedDict()
        self._spent: tuple[date, Decimal] = utc_date(0.0), Decimal(0)
        self._task: asyncio.Task[None] | None = None

    def on_request_sent(self, digests: frozenset[str]) -> None:
        """A request was sent: stop pinging the conversations that it continues, because it refreshes their cache."""
        for tail in [tail for tail in self._idle if tail in digests]:
            del self._idle[tail]

    def keep_alive(
        self, ping: GatewayPing, exchange: Exchange, upstream: Upstream, head: tuple[bytes, Headers]
    ) -> None:
        """`head` is the path and headers the request was sent with."""
        self._idle[ping.prefix_digest] = _IdleConversation(ping, exchange, upstream, head)
        self._idle.move_to_end(ping.prefix_digest)
        while len(self._idle) > IDLE_CONVERSATIONS_MAX:
            self._idle.popitem(last=False)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._idle.clear()
        if self._task is not None:
            self._task.cancel()
        self._connections.close()

    async def _run(self) -> None:
        while self._idle:
            await asyncio.sleep(KEEP_ALIVE_CHECK_SECONDS)
            await self.send_due_pings()

    async def send_due_pings(self) -> int:
        """Sends the pings that are due; returns how many."""
        now, sent = self._clock(), 0
        for tail, idle in list(self._idle.items()):
            due = idle.used_at + idle.ping.ttl_seconds - PING_MARGIN_SECONDS
            if now < due:
                continue
            # After expiry a ping would be a cache write, which is the cost it was meant to avoid.
            expired = now >= idle.used_at + idle.ping.ttl_seconds
            if expired or idle.pings_sent >= idle.ping.pings_max or not self._may_spend(idle.ping.cost_usd, now):
                del self._idle[tail]
                continue
            # The TTL restarts when a request starts, not when it ends (Anthropic prompt caching).
            idle.pings_sent += 1
            idle.used_at = now
            sent += 1
            if not await self._send(idle, now):
                self._idle.pop(tail, None)
        return sent

    def _may_spend(self, cost_usd: Decimal, now: float) -> bool:
        # Reserve the cost before sending: if the response is lost, the ping may still have been billed.
        day, spent = self._spent
        if day != utc_date(now):
            day, spent = utc_date(now), Decimal(0)
        if spent + cost_usd > self._usd_a_day_max:
            return False
        self._spent = day, spent + cost_usd
        return True

    async def _send(self, idle: _IdleConversation, now: float) -> bool:
        """Returns whether the provider accepted the ping."""
        try:
            async with asyncio.timeout(PING_SECONDS_MAX):
                status, response = await self._exchange(idle)
        except (ConnectionCutError, TimeoutError):
            return False
        if status != 200:
            return False
        self._on_ping(idle.exchange, idle.ping, response, now)
        return True

    async def _exchange(self, idle: _IdleConversation) -> tuple[int, bytes]:
        connection = await self._connections.acquire(idle.upstream)
        try:
            connection.start_request("POST", idle.path, _ping_headers(idle.headers, idle.upstream, len(idle.ping.body)))
            await connection.write_body(idle.ping.body)
            connection.end_request()
            head = await connection.read_head()
            chunks, size = [], 0
            while not connection.is_complete and size <= GATEWAY_PING_RESPONSE_BYTES_MAX:
                chunks.append(await connection.read_chunk())
                size += len(chunks[-1])
            return head.status, b"".join(chunks)
        finally:
            self._connections.release(idle.upstream, connection)


def _ping_headers(headers: Headers, upstream: Upstream, size_bytes: int) -> Headers:
    """The client's headers for a body of that length; without accept-encoding, so that the response is plain."""
    dropped = (b"content-length", b"transfer-encoding", b"accept-encoding")
    forwarded = [(name, value) for name, value in headers if name not in dropped]
    return [*filter_request_headers(forwarded, upstream.authority), (b"content-length", b"%d" % size_bytes)]
