"""Sends the pings that keep the caches of idle forwarded conversations alive, from the gateway's event loop."""

import asyncio
from decimal import Decimal

from holdfast.clock import Clock
from holdfast.engine.leases import ProcessLeases
from holdfast.gateway.exchange import Exchange, GatewayRefusedError
from holdfast.gateway.http.connection import ConnectionCutError, UpstreamPool
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.key_limits import KeyBudgets
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.ping_schedule import (
    KEEP_ALIVE_CHECK_SECONDS,
    PING_SECONDS_MAX,
    IdleConversation,
    OnPing,
    PingSchedule,
)
from holdfast.gateway.rewrite.request_analysis import GatewayPing, RequestAnalysis
from holdfast.gateway.routes import Upstream

GATEWAY_PING_RESPONSE_BYTES_MAX = 1_000_000


class ForwardedConversation(IdleConversation):
    """`head` is the path and headers that its last request was sent with."""

    def __init__(
        self,
        analysis: RequestAnalysis,
        exchange: Exchange,
        received: bytes,
        *,
        upstream: Upstream,
        head: tuple[bytes, Headers],
    ) -> None:
        super().__init__(analysis, exchange, received)
        self.upstream = upstream
        self.path, self.headers = head


class GatewayKeepAlive:
    """Sends the pings that the planner expects to pay, until it expects none, or the daily limit or a budget is spent.

    The request and the client's credential are held in memory only, and only while a ping is planned.
    """

    def __init__(
        self,
        rewriter: ConversationRewriter,
        *,
        clock: Clock,
        usd_a_day_max: Decimal,
        on_ping: OnPing,
        leases: ProcessLeases | None = None,
        budgets: KeyBudgets | None = None,
    ) -> None:
        self._budgets = budgets
        self._schedule = PingSchedule(rewriter, usd_a_day_max=usd_a_day_max, on_ping=on_ping, leases=leases)
        self._clock = clock
        self._connections = UpstreamPool()
        self._task: asyncio.Task[None] | None = None

    def watch(self, idle: ForwardedConversation) -> None:
        """A call has ended: ping its conversation for as long as that pays."""
        self._schedule.add(idle)
        if not self._schedule.is_empty and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._schedule.clear()
        if self._task is not None:
            self._task.cancel()
        self._connections.close()

    async def _run(self) -> None:
        while not self._schedule.is_empty:
            await asyncio.sleep(KEEP_ALIVE_CHECK_SECONDS)
            await self.send_due_pings()

    async def send_due_pings(self) -> int:
        """Sends the pings that are due; returns how many."""
        now, sent = self._clock(), 0
        for idle, due in self._schedule.find_due(now):
            ping = await asyncio.to_thread(self._schedule.encode, idle, due, now)
            if ping is None or not isinstance(idle, ForwardedConversation):
                continue
            if not await self._reserve(idle.exchange, due.cost_usd, now):
                self._schedule.drop(idle)
                continue
            sent += 1
            try:
                async with asyncio.timeout(PING_SECONDS_MAX):
                    status, response = await self._exchange(idle, ping)
            except (ConnectionCutError, TimeoutError):
                status, response = 0, b""
            if status == 200:
                self._schedule.complete(idle, ping, response, now)
            else:
                self._schedule.drop(idle)
                if status and self._budgets is not None and idle.exchange.caller.key_id is not None:
                    self._budgets.release(idle.exchange.make_ping_id(now), idle.exchange.caller.key_id, now)
        return sent

    async def _reserve(self, exchange: Exchange, cost_usd: Decimal, now: float) -> bool:
        """Whether the budget of the key has room for a ping, which the recorder settles like a call."""
        caller = exchange.caller
        if self._budgets is None or caller.key_id is None or not caller.has_budget:
            return True
        try:
            await self._budgets.reserve_ping(exchange.make_ping_id(now), caller.key_id, cost_usd)
        except GatewayRefusedError:
            return False
        return True

    async def _exchange(self, idle: ForwardedConversation, ping: GatewayPing) -> tuple[int, bytes]:
        return await self._connections.exchange(
            idle.upstream,
            "POST",
            idle.path,
            headers=idle.headers,
            body=ping.body,
            bytes_max=GATEWAY_PING_RESPONSE_BYTES_MAX,
        )
