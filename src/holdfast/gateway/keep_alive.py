"""Keeps the caches of idle forwarded conversations alive with pings, for as long as the planner expects that to pay."""

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from decimal import Decimal

from holdfast.catalog.lookup import utc_date
from holdfast.clock import Clock
from holdfast.engine.cache.conversation_plans import DuePing
from holdfast.engine.cache.message_tree import PlannedConversation
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.http.connection import ConnectionCutError, UpstreamPool
from holdfast.gateway.http.headers import Headers, filter_request_headers
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.rewriter import GatewayPing, RequestAnalysis
from holdfast.gateway.routes import Upstream
from holdfast.planning.keep_alive import PING_MARGIN_SECONDS

logger = logging.getLogger(__name__)

# Each idle conversation with a planned ping holds its last request and response, up to 4 MiB each, in memory.
IDLE_CONVERSATIONS_MAX = 64
KEEP_ALIVE_CHECK_SECONDS = 5.0
GATEWAY_PING_RESPONSE_BYTES_MAX = 1_000_000
PING_SECONDS_MAX = 30.0

OnPing = Callable[[Exchange, GatewayPing, bytes, float], None]
"""Called with exchange, ping, response body and send time of each answered ping."""


class IdleConversation:
    """A conversation after a successful call: what a ping repeats, and how it was sent.

    `received` is the body of the request; `head` is the path and headers it was sent with.
    """

    def __init__(
        self,
        analysis: RequestAnalysis,
        exchange: Exchange,
        received: bytes,
        *,
        upstream: Upstream,
        head: tuple[bytes, Headers],
    ) -> None:
        self.analysis = analysis
        self.exchange = exchange
        self.sent = analysis.body or received
        self.response = exchange.decode_response() or b""
        self.upstream = upstream
        self.path, self.headers = head


class GatewayKeepAlive:
    """Sends the pings that the planner expects to pay, until it expects none or the daily limit is spent.

    The request and the client's credential are held in memory only, and only while a ping is planned.
    """

    def __init__(
        self, rewriter: ConversationRewriter, *, clock: Clock, usd_a_day_max: Decimal, on_ping: OnPing
    ) -> None:
        self._rewriter = rewriter
        self._clock = clock
        self._usd_a_day_max = usd_a_day_max
        self._on_ping = on_ping
        self._connections = UpstreamPool()
        self._idle: OrderedDict[PlannedConversation, IdleConversation] = OrderedDict()
        self._spent: tuple[date, Decimal] = utc_date(0.0), Decimal(0)
        self._task: asyncio.Task[None] | None = None

    def watch(self, idle: IdleConversation) -> None:
        """A call has ended: ping its conversation for as long as that pays."""
        call = idle.analysis.call
        if call is None:
            return
        self._idle.pop(call.conversation, None)
        if self._plan(idle) is None:
            return
        self._idle[call.conversation] = idle
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

    def _plan(self, idle: IdleConversation) -> DuePing | None:
        return self._rewriter.plan_ping(idle.analysis, idle.response)

    async def send_due_pings(self) -> int:
        """Sends the pings that are due; returns how many."""
        now, sent = self._clock(), 0
        for conversation, idle in list(self._idle.items()):
            # Planned again each time: a call that has followed, or has just begun, ends the wait.
            due = self._plan(idle)
            if due is not None and now < due.at:
                continue
            # After expiry a ping would be a cache write, which is the cost it was meant to avoid.
            is_late = due is not None and now >= due.at + PING_MARGIN_SECONDS
            if due is None or is_late or not await self._ping(idle, due, now):
                self._idle.pop(conversation, None)
                continue
            sent += 1
        return sent

    async def _ping(self, idle: IdleConversation, due: DuePing, now: float) -> bool:
        """Returns whether the provider accepted the ping."""
        encode = functools.partial(self._rewriter.encode_ping, sent=idle.sent, response=idle.response)
        try:
            ping = await asyncio.to_thread(encode, idle.analysis, due)
        except Exception as error:  # noqa: BLE001 - what cannot be encoded is not kept alive, whatever this was
            logger.info("a conversation is not kept alive: %s", type(error).__name__)
            return False
        if ping is None or not self._may_spend(due.cost_usd, now):
            return False
        try:
            async with asyncio.timeout(PING_SECONDS_MAX):
                status, response = await self._exchange(idle, ping)
        except (ConnectionCutError, TimeoutError):
            return False
        if status != 200:
            return False
        if idle.analysis.call is not None:
            # The TTL restarts when a request starts, not when it ends (Anthropic prompt caching).
            self._rewriter.record_ping(idle.analysis.call, ping, response, now)
        self._on_ping(idle.exchange, ping, response, now)
        return True

    def _may_spend(self, cost_usd: Decimal, now: float) -> bool:
        # Reserve the cost before sending: if the response is lost, the ping may still have been billed.
        day, spent = self._spent
        if day != utc_date(now):
            day, spent = utc_date(now), Decimal(0)
        if spent + cost_usd > self._usd_a_day_max:
            return False
        self._spent = day, spent + cost_usd
        return True

    async def _exchange(self, idle: IdleConversation, ping: GatewayPing) -> tuple[int, bytes]:
        connection = await self._connections.acquire(idle.upstream)
        try:
            connection.start_request("POST", idle.path, _ping_headers(idle.headers, idle.upstream, len(ping.body)))
            await connection.write_body(ping.body)
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
