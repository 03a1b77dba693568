"""The idle conversations of a process that a ping is planned for, and what pings may cost a day."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from decimal import Decimal

from holdfast.catalog.lookup import utc_date
from holdfast.engine.cache.conversation_plans import TAKEOVER_SECONDS, DuePing
from holdfast.engine.cache.message_tree import PlannedConversation
from holdfast.engine.leases import ProcessLeases
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.request_analysis import GatewayPing, RequestAnalysis
from holdfast.planning.keep_alive import PING_MARGIN_SECONDS

logger = logging.getLogger(__name__)

# Each idle conversation with a planned ping holds its last request and response, up to 4 MiB each, in memory.
IDLE_CONVERSATIONS_MAX = 64
KEEP_ALIVE_CHECK_SECONDS = 5.0
PING_SECONDS_MAX = 30.0

# Of all processes, the one that has the lease of a conversation pings it. Longer than the time in which a ping is due.
PING_LEASE_SECONDS = 60.0

OnPing = Callable[[Exchange, GatewayPing, bytes, float], None]
"""Called with exchange, ping, response body and send time of each answered ping."""


class IdleConversation:
    """A conversation after a successful call, with what a ping repeats; `received` is the body of the request."""

    def __init__(self, analysis: RequestAnalysis, exchange: Exchange, received: bytes) -> None:
        self.analysis = analysis
        self.exchange = exchange
        self.sent = analysis.body or received
        self.response = exchange.decode_response() or b""
        self.takeover: DuePing | None = None
        """The ping to send if the process that has continued the conversation has died by then."""


class PingSchedule:
    """Thread-safe. Holds conversations only while the planner expects a ping to pay, and within the daily limit.

    With `leases`, of all processes that had calls of a conversation one pings it: the one that had the newest call, or,
    if that does not, the one that had the call before.
    """

    def __init__(
        self,
        rewriter: ConversationRewriter,
        *,
        usd_a_day_max: Decimal,
        on_ping: OnPing,
        leases: ProcessLeases | None = None,
    ) -> None:
        self._rewriter = rewriter
        self._leases = leases
        self._usd_a_day_max = usd_a_day_max
        self._on_ping = on_ping
        self._idle: OrderedDict[PlannedConversation, IdleConversation] = OrderedDict()
        self._spent: tuple[date, Decimal] = utc_date(0.0), Decimal(0)
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        return not self._idle

    def add(self, idle: IdleConversation) -> None:
        """A call has ended: ping its conversation for as long as that pays."""
        call, due = idle.analysis.call, self._plan(idle)
        with self._lock:
            self._idle.pop(call.conversation, None)
            if due is not None:
                self._idle[call.conversation] = idle
            while len(self._idle) > IDLE_CONVERSATIONS_MAX:
                self._idle.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._idle.clear()

    def find_due(self, now: float) -> list[tuple[IdleConversation, DuePing]]:
        """The pings that are due; conversations that none is expected to pay for any more are dropped."""
        with self._lock:
            waiting = list(self._idle.values())
        found = []
        for idle in waiting:
            # Planned again each time: a call that has followed, or has just begun, ends the wait.
            due = self._plan(idle)
            margin = PING_MARGIN_SECONDS
            if due is not None and idle.takeover is not None:
                due, margin = idle.takeover, PING_MARGIN_SECONDS - TAKEOVER_SECONDS
            # After expiry a ping would be a cache write, which is the cost it was meant to avoid.
            if due is None or now >= due.at + margin:
                self.drop(idle)
            elif now >= due.at:
                found.append((idle, due))
        return found

    def encode(self, idle: IdleConversation, due: DuePing, now: float) -> GatewayPing | None:
        """The request of a ping that is due, if it is for this process to send now.

        Drops the conversation if there can be no ping, it exceeds the limit, or another process has sent it.
        """
        ping = None
        try:
            owned = due if self._rewriter.is_newest_anywhere(idle.analysis) else self._plan_takeover(idle)
            if owned is not None and owned is idle.takeover and now < owned.at:
                return None
            if owned is not None:
                ping = self._rewriter.encode_ping(idle.analysis, owned, sent=idle.sent, response=idle.response)
        except Exception as error:  # noqa: BLE001 - what cannot be encoded is not kept alive, whatever this was
            logger.info("a conversation is not kept alive: %s", type(error).__name__)
        if ping is None or not self._take_lease(idle) or not self._may_spend(due.cost_usd, now):
            self.drop(idle)
            return None
        return ping

    def _plan_takeover(self, idle: IdleConversation) -> DuePing | None:
        if self._leases is not None:
            idle.takeover = self._rewriter.plan_takeover(idle.analysis, idle.response)
        return idle.takeover

    def _take_lease(self, idle: IdleConversation) -> bool:
        if self._leases is None:
            return True
        return self._leases.take(f"ping {idle.analysis.call.conversation.shared_id}", seconds=PING_LEASE_SECONDS)

    def complete(self, idle: IdleConversation, ping: GatewayPing, response: bytes, sent_at: float) -> None:
        """The provider accepted the ping. The TTL restarts when a request starts, not when it ends."""
        idle.takeover = None
        self._rewriter.record_ping(idle.analysis.call, ping, response, sent_at)
        self._on_ping(idle.exchange, ping, response, sent_at)

    def drop(self, idle: IdleConversation) -> None:
        with self._lock:
            conversation = idle.analysis.call.conversation
            if self._idle.get(conversation) is idle:
                del self._idle[conversation]

    def _plan(self, idle: IdleConversation) -> DuePing | None:
        return self._rewriter.plan_ping(idle.analysis, idle.response)

    def _may_spend(self, cost_usd: Decimal, now: float) -> bool:
        # Reserve the cost before sending: if the response is lost, the ping may still have been billed.
        with self._lock:
            day, spent = self._spent
            if day != utc_date(now):
                day, spent = utc_date(now), Decimal(0)
            if spent + cost_usd > self._usd_a_day_max:
                return False
            self._spent = day, spent + cost_usd
            return True
