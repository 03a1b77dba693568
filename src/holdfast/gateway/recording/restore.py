"""Restores forwarded conversations and today's spending from the log, so that a restart continues both."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from datetime import date

import msgspec

from holdfast.catalog.lookup import utc_date
from holdfast.catalog.schema import Model
from holdfast.engine.cache.conversation_plans import RestoredConversation
from holdfast.engine.cache.memory_fold import MemoryFold
from holdfast.engine.recorder import ObservedRequest, ResumedSession
from holdfast.events.conversation_keys import make_caller_scope
from holdfast.events.log import Event, EventLog, SessionRow
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import (
    UNPRICED,
    ConversationTrace,
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ReplyTrace,
    RequestPrepared,
)
from holdfast.events.payloads.session import SessionStarted
from holdfast.gateway.exchange import UNPRICED_USD_PER_MTOK
from holdfast.gateway.recording.conversation_match import REPLIES_MAX
from holdfast.gateway.recording.fingerprint import RequestFingerprint, SessionHints
from holdfast.ledger.money import utc_day_start
from holdfast.planning.learned import LEARNED_RECORDS_MAX
from holdfast.types.prompt import Plan
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

RESTORED_SESSIONS_MAX = 200

# The events of a call may be older than the newest frame that is read again by as much as the clock was set back.
RECORDED_SECONDS_BEFORE = 300.0

# A forwarded session has `gateway.forwarded` among its first two events, so others need not be read further.
OPENING_EVENTS = 2


class RecordedCall(msgspec.Struct, frozen=True):
    """A call on the log, as it was prepared; `outcome` is None while it has none."""

    session_id: str
    started_at: float
    model: str
    provider: str
    tokens: int
    plan: Plan
    digests: tuple[PrefixDigest, ...]
    outcome: LlmCallCompleted | LlmCallFailed | None = None

    def to_request(self, row: Model | None) -> ObservedRequest:
        return ObservedRequest(
            model=self.model,
            provider=self.provider,
            row=row,
            plan=self.plan,
            digests=self.digests,
            parameters_digest="",
            body_bytes=0,
            tokens=self.tokens,
        )


class RecordedCalls(msgspec.Struct, frozen=True):
    """What the log has of exchanges that may be read again: calls by request id, pings by the time they were sent.

    `last_events` are by session. `unstorable` are exchanges whose events no store takes: only their size is recorded.
    """

    calls: dict[str, RecordedCall] = {}
    pings: frozenset[float] = frozenset()
    last_events: dict[str, str] = {}
    unstorable: frozenset[str] = frozenset()


class RecordedConversation(msgspec.Struct, frozen=True):
    """A conversation as of its last request; `plan` is what the planner knew of it.

    `calls` are those that can still get an outcome or a ping, by request id: the unfinished ones and the last one.
    `replies` are the newest.
    """

    resumed: ResumedSession
    request: RequestFingerprint
    reply_id: str
    plan: RestoredConversation | None
    calls: dict[str, RecordedCall] = {}
    replies: tuple[ReplyTrace, ...] = ()

    @property
    def open_requests(self) -> int:
        return sum(call.outcome is None for call in self.calls.values())

    @property
    def is_answered(self) -> bool:
        """Whether the newest call was; one that failed may be repeated."""
        newest = next(reversed(self.calls.values()), None)
        return newest is not None and isinstance(newest.outcome, LlmCallCompleted)


class CallSpending(msgspec.Struct, frozen=True):
    """Cost of one call or ping, with the gateway key it was made with and the key's label.

    It began at `at`; a call ended at `ended_at`. `calls` and `failed` are 0 or 1; a failed call has no usage.
    `unpriced_tokens` of a model without a price are not in `dollars`.
    """

    key_id: str | None
    label: str | None
    at: float
    dollars: float
    calls: int = 1
    failed: int = 0
    unpriced_tokens: int = 0
    ended_at: float = 0.0


def find_recorded_calls(log: EventLog, exchange_ids: Sequence[str]) -> RecordedCalls:
    """Calls and pings of the sessions in which any of these exchanges is recorded."""
    calls: dict[str, RecordedCall] = {}
    pings: set[float] = set()
    last_events: dict[str, str] = {}
    for session_id in sorted(log.find_sessions(exchange_ids)):
        fold = _CallFold(session_id)
        for event in log.read(session_id):
            last_events[session_id] = event.id
            fold.add(event)
            if isinstance(event.payload, CachePinged):
                pings.add(event.payload.sent_at or event.at)
        calls |= fold.calls
    return RecordedCalls(calls, frozenset(pings), last_events)


def list_active_sessions(log: EventLog, since: float) -> tuple[SessionRow, ...]:
    """The sessions that had an event after `since`, or shortly before."""
    limit = RESTORED_SESSIONS_MAX
    while True:
        rows = log.sessions(limit=limit)
        active = tuple(row for row in rows if row.last_event_at >= since - RECORDED_SECONDS_BEFORE)
        if len(active) < len(rows) or len(rows) < limit:
            return active
        limit *= 4


class _CallFold:
    """Follows the calls of one session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._plan = Plan()
        self.digests: tuple[PrefixDigest, ...] = ()
        self.calls: dict[str, RecordedCall] = {}

    def add(self, event: Event) -> None:
        match event.payload:
            case RequestPrepared() as payload:
                self.digests = (*self.digests[: payload.shared_blocks], *payload.digests)
                self._plan = payload.plan
            case LlmCallStarted() as payload:
                newest = next(reversed(self.calls), None)
                if newest is not None and self.calls[newest].outcome is not None:
                    # Only for pings, which repeat the newest call; a long session has thousands for each call.
                    self.calls[newest] = msgspec.structs.replace(self.calls[newest], digests=())
                self.calls[payload.request_id] = RecordedCall(
                    self._session_id,
                    event.at,
                    payload.model,
                    payload.provider,
                    payload.estimated_input_tokens,
                    self._plan,
                    self.digests,
                )
            case LlmCallCompleted() | LlmCallFailed() as payload if payload.request_id in self.calls:
                call = self.calls[payload.request_id]
                self.calls[payload.request_id] = msgspec.structs.replace(call, outcome=payload)
            case _:
                pass


class ConversationFold:
    """Follows the events of one forwarded conversation, by whichever process they were recorded."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._trace: ConversationTrace | None = None
        self._blocks: tuple[str, ...] = ()
        self._key_id: str | None = None
        self._reply_id = ""
        self._replies: list[ReplyTrace] = []
        self._memory, self._calls = MemoryFold(), _CallFold(session_id)
        self.event_count = 0
        self.last_event_id = ""

    def add(self, event: Event) -> None:
        self.event_count += 1
        self.last_event_id = event.id
        self._calls.add(event)
        self._memory.add(event.at, event.payload)
        match event.payload:
            case GatewayForwarded() as payload:
                self._key_id, self._trace = payload.key_id, payload.trace
                if payload.trace is not None:
                    self._blocks = (*self._blocks[: payload.trace.shared_blocks], *payload.trace.blocks)
            case LlmCallCompleted() as payload:
                self._reply_id = payload.response_id or self._reply_id
                if isinstance(payload.reply, ReplyTrace):
                    self._replies = [*self._replies, payload.reply][-REPLIES_MAX:]
            case _:
                pass

    def describe(self) -> RecordedConversation | None:
        """The conversation as of its last event; None if no request of it can be matched."""
        trace, sent, session_id = self._trace, self._memory.last_request, self._session_id
        calls, digests = self._calls.calls, self._calls.digests
        if trace is None:
            return None
        request = RequestFingerprint(
            make_caller_scope(trace.mount, self._key_id),
            trace.prefix_digest,
            self._blocks,
            SessionHints(trace.session_digest, trace.reason),
            at=0.0 if sent is None else sent.at,
        )
        plan = None
        if sent is not None:
            plan = RestoredConversation(digests[: sent.blocks], self._memory.memory, sent, session_id)
        newest = next(reversed(calls), None)
        # A copy: a recorder adds its own events to it, which this fold reads from the log.
        memory = copy(self._memory)
        return RecordedConversation(
            ResumedSession(session_id, digests, self.last_event_id, memory, self.event_count),
            request,
            self._reply_id,
            plan,
            {id: call for id, call in calls.items() if call.outcome is None or id == newest},
            tuple(self._replies),
        )


def restore_conversations(log: EventLog) -> Iterator[RecordedConversation]:
    """The newest forwarded conversations of a log, by start time; other sessions are read only up to their opening."""
    for row in sorted(log.sessions(limit=RESTORED_SESSIONS_MAX), key=lambda row: (row.started_at, row.id)):
        events = log.read(row.id)
        opening = [event for _, event in zip(range(OPENING_EVENTS), events, strict=False)]
        if any(isinstance(event.payload, GatewayForwarded) for event in opening):
            conversation = fold_conversation(row.id, (*opening, *events))
            if conversation is not None:
                yield conversation


def read_conversation(log: EventLog, session_id: str) -> RecordedConversation | None:
    """One forwarded conversation; None if it is no longer on the log."""
    return fold_conversation(session_id, log.read(session_id))


def read_conversations(log: EventLog, session_ids: Iterable[str]) -> Iterator[RecordedConversation]:
    """The forwarded conversations among some sessions."""
    conversations = (read_conversation(log, session_id) for session_id in session_ids)
    return (conversation for conversation in conversations if conversation is not None)


def fold_conversation(session_id: str, events: Iterable[Event]) -> RecordedConversation | None:
    fold = ConversationFold(session_id)
    for event in events:
        fold.add(event)
    return fold.describe()


def restore_plans(log: EventLog) -> Iterator[RestoredConversation]:
    """What the planner knew of the newest forwarded conversations."""
    return (conversation.plan for conversation in restore_conversations(log) if conversation.plan is not None)


def read_learned(log: EventLog) -> tuple[Event, ...]:
    """What the newest conversations and sessions have learned, as `cache.learned` events."""
    return log.learned_events(limit=LEARNED_RECORDS_MAX)


def iterate_spending(log: EventLog, *, since: date | None = None) -> Iterator[CallSpending]:
    """Cost of forwarded calls, session by session, from the start of the day `since` if given."""
    rows = log.sessions() if since is None else list_active_sessions(log, utc_day_start(since.isoformat()))
    for row in rows:
        yield from _fold_spending(log.read(row.id), since)


def iterate_failures(log: EventLog, session_ids: Iterable[str]) -> Iterator[CallSpending]:
    """The forwarded calls of some sessions that failed at no cost."""
    for session_id in session_ids:
        yield from (call for call in _fold_spending(log.read(session_id), None) if call.failed)


def sum_spending_today(
    log: EventLog, now: float, *, unpriced_usd_per_mtok: float = UNPRICED_USD_PER_MTOK
) -> dict[str, float]:
    """What each gateway key has spent today in dollars, by the log; unpriced calls by estimate."""
    spent: dict[str, float] = {}
    for spending in iterate_spending(log, since=utc_date(now)):
        if spending.key_id is not None:
            estimate = spending.unpriced_tokens * unpriced_usd_per_mtok / 1_000_000
            spent[spending.key_id] = spent.get(spending.key_id, 0.0) + spending.dollars + estimate
    return spent


def _fold_spending(events: Iterable[Event], since: date | None) -> Iterator[CallSpending]:
    label: str | None = None
    forwarded: GatewayForwarded | None = None
    keys: dict[str, tuple[float, str | None]] = {}
    for event in events:
        match event.payload:
            case SessionStarted() as payload:
                label = payload.name
            case GatewayForwarded() as payload:
                forwarded = payload
            case LlmCallStarted() as payload:
                if forwarded is None:
                    return
                keys[payload.request_id] = event.at, forwarded.key_id
            case LlmCallCompleted() | LlmCallFailed() as payload:
                at, key_id = keys.pop(payload.request_id, (event.at, None))
                failed = isinstance(payload, LlmCallFailed) and payload.usage == Usage()
                if since is None or utc_date(at) >= since:
                    costs = (float(payload.cost_usd), int(not failed), int(failed), count_unpriced_tokens(payload))
                    # Without a key the session may be named by its endpoint, which is no label of a key.
                    yield CallSpending(key_id, label if key_id else None, at, *costs, ended_at=event.at)
            case CachePinged() as payload:
                if forwarded is not None and (since is None or utc_date(event.at) >= since):
                    key_id = forwarded.key_id
                    yield CallSpending(key_id, label if key_id else None, event.at, float(payload.cost_usd), 0)
            case _:
                pass


def count_unpriced_tokens(call: LlmCallCompleted | LlmCallFailed) -> int:
    """The tokens of a call whose model has no price."""
    # A broken-off call has no pricing version: with usage and without a cost, its model had no price.
    unpriced = call.pricing_version == UNPRICED if isinstance(call, LlmCallCompleted) else not call.cost_usd
    return call.usage.tokens_sent + call.usage.output if unpriced else 0
