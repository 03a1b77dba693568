"""Sends the pings that keep the caches of a wrapped client's idle conversations alive, from a thread of its own."""

import logging
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from holdfast.clock import Clock
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.ping_schedule import KEEP_ALIVE_CHECK_SECONDS, IdleConversation, OnPing, PingSchedule
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis

logger = logging.getLogger(__name__)

# `Any`: request and response of the SDK's HTTP library, which comes with the SDK.
SendRequest = Callable[[Any], Any]


class ObservedConversation(IdleConversation):
    """`request` was the last one; `send` sends another through the client's own connections."""

    def __init__(
        self, analysis: RequestAnalysis, exchange: Exchange, received: bytes, *, request: Any, send: SendRequest
    ) -> None:
        super().__init__(analysis, exchange, received)
        self.request = request
        self.send = send


class ClientKeepAlive:
    """Thread-safe. Its thread runs only while a ping is planned."""

    def __init__(
        self, rewriter: ConversationRewriter, *, clock: Clock, usd_a_day_max: Decimal, on_ping: OnPing
    ) -> None:
        self._schedule = PingSchedule(rewriter, usd_a_day_max=usd_a_day_max, on_ping=on_ping)
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def watch(self, idle: ObservedConversation) -> None:
        """A call has ended: ping its conversation for as long as that pays."""
        self._schedule.add(idle)
        with self._lock:
            if self._thread is None and not self._schedule.is_empty and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="holdfast-keep-alive", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._schedule.clear()

    def _run(self) -> None:
        while not self._closed.wait(KEEP_ALIVE_CHECK_SECONDS):
            with self._lock:
                if self._schedule.is_empty:
                    self._thread = None
                    return
            self.send_due_pings()

    def send_due_pings(self) -> int:
        """Sends the pings that are due; returns how many."""
        now, sent = self._clock(), 0
        for idle, due in self._schedule.find_due(now):
            ping = self._schedule.encode(idle, due, now)
            if ping is None or not isinstance(idle, ObservedConversation):
                continue
            sent += 1
            try:
                response = idle.send(replace_content(idle.request, ping.body))
            except Exception as error:  # noqa: BLE001 - a ping that fails is not the caller's problem, whatever it was
                logger.info("a ping failed: %s", type(error).__name__)
                self._schedule.drop(idle)
                continue
            if response.status_code == 200:
                self._schedule.complete(idle, ping, response.content, now)
            else:
                self._schedule.drop(idle)
        return sent


def replace_content(request: Any, body: bytes, **headers: str) -> Any:
    """The request with another body; the caller's stays as it is, because the SDK may send it again."""
    changed = request.headers.copy()
    changed.update({"content-length": str(len(body)), **headers})
    return type(request)(request.method, request.url, headers=changed, content=body, extensions=request.extensions)
