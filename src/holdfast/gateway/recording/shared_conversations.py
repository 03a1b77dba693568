"""Follows conversations that other replicas record too: what is not known of one here is read from the store.

Recording lags behind forwarding, so the reply that a request follows may still be in the spool of another replica. Such
a request waits until all recorders are past its start. Each says so in a lease; one that has died is waited for a time.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec

from holdfast.clock import Clock
from holdfast.events.conversation_keys import block_key, delegation_key, name_key, reply_key, response_key
from holdfast.events.log import EventLog
from holdfast.events.records import SessionHead, SharedWorkStore
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.recording.conversation_match import MATCHED_CONVERSATIONS_MAX
from holdfast.gateway.recording.conversation_memory import ConversationMemory
from holdfast.gateway.recording.fingerprint import RequestFingerprint
from holdfast.gateway.recording.restore import ConversationFold

LOOKED_UP_BLOCKS_MAX = 128
"""Newest blocks of a request by which its conversation is looked up; a turn adds fewer."""

RECORDER_LEASE = "recorder "
RECORDER_LEASE_SECONDS = 10.0
RENEW_SECONDS = 1.0

ABSENT_SECONDS_MAX = 30.0
"""How long a recorder whose lease has ended is waited for: it is started again, and records what it has spooled."""

WAIT_SECONDS_MAX = 900.0
"""For a recorder that is there and far behind."""

WAITING_EXCHANGES_MAX = 5_000
WAITING_LOOKED_UP_MAX, WAITING_BLOCKS_MAX = 64, 8
"""Waiting requests that are looked up again at once, the oldest first, each by as many of its newest blocks."""

ASK_AGAIN_SECONDS, BEHIND_SECONDS = 0.1, 0.5
"""How often a recorder asks, and says, how far recorders are; one that is behind says so less often, because it waits
for the writer's lock to do so."""

CLOCK_SKEW_SECONDS = 0.05
"""By how much the clock of another machine may be ahead."""


def find_request_keys(request: RequestFingerprint, blocks_max: int = LOOKED_UP_BLOCKS_MAX) -> Iterator[str]:
    """The conversation keys that a request has if it continues a conversation."""
    scope, hints = request.restored_scope or request.scope, request.hints
    for position, digest in list(enumerate(request.blocks))[-blocks_max:]:
        yield block_key(scope, position, digest)
    if hints.previous_response_id:
        yield response_key(hints.previous_response_id)
    if hints.is_strong and hints.session:
        yield name_key(scope, hints.session)
    yield from map(delegation_key, request.opening)


class _Waiting(msgspec.Struct, frozen=True):
    """`since` is when the exchange came first."""

    exchange: Exchange
    request: RequestFingerprint
    since: float


class _Known:
    """A conversation of this process: its key in the matcher, and what the log has of it as far as it was read."""

    def __init__(self, key: int, fold: ConversationFold) -> None:
        self.key = key
        self.fold = fold


class SharedConversations:
    """Keeps a recorder's conversations up to date; `lease` is this recorder's own."""

    def __init__(self, log: EventLog, memory: ConversationMemory, lease: "RecorderLease") -> None:
        self._log, self._memory, self._matcher = log, memory, memory.matcher
        self._lease, self._work, self._clock = lease.name, lease.work, lease.clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}
        self._ended: set[str] = set()
        self._others_until, self._asked_at = float("inf"), float("-inf")

    @property
    def waiting_ids(self) -> frozenset[str]:
        return frozenset(self._waiting)

    @property
    def recorded_until(self) -> float:
        """What ended before this time does not wait."""
        ended = (waiting.exchange.ended_at for id, waiting in self._waiting.items() if id in self._ended)
        return min(ended, default=float("inf"))

    def must_wait(self, exchange: Exchange, request: RequestFingerprint, *, since: float | None = None) -> bool:
        """Brings the conversations that the request may continue up to date.

        True, and the exchange is kept, if it follows a reply that another replica may not have recorded yet.
        """
        # Alone, nobody else can have continued a conversation whose newest reply is known here.
        is_known = bool(request.newest_reply) and not self._matcher.follows_unknown_reply(request)
        if is_known and self._ask_others() == float("inf"):
            return False
        heads = self._work.find_conversations(list(find_request_keys(request)))
        if not heads and request.newest_reply:
            # Many conversations may have the same reply, so this comes last.
            heads = self._work.find_conversations([reply_key(request.newest_reply)])
        for head in heads:
            self._update(head)
        waiting = _Waiting(exchange, request, self._clock() if since is None else since)
        if len(self._waiting) >= WAITING_EXCHANGES_MAX or not self._follows_unrecorded_reply(waiting):
            return False
        self._waiting[exchange.id] = waiting
        return True

    def _follows_unrecorded_reply(self, waiting: _Waiting) -> bool:
        is_patient = self._clock() - waiting.since < WAIT_SECONDS_MAX
        is_unknown = is_patient and self._matcher.follows_unknown_reply(waiting.request)
        return is_unknown and self._is_ahead(waiting.exchange.started_at)

    def note_end(self, exchange: Exchange) -> bool:
        """Whether an exchange that has ended still waits to be begun."""
        if exchange.id not in self._waiting:
            return False
        self._ended.add(exchange.id)
        return True

    def take_waiting(self) -> Iterator[tuple[Exchange, float, bool]]:
        """The exchanges that need not wait any more, in order: each with its first time here, and whether it ended."""
        first = (waiting.request for waiting in islice(self._waiting.values(), WAITING_LOOKED_UP_MAX))
        keys = {key for request in first for key in find_request_keys(request, WAITING_BLOCKS_MAX)}
        for head in self._work.find_conversations(sorted(keys)):
            self._update(head)
        all_waiting, self._waiting = self._waiting, {}
        for id, waiting in all_waiting.items():
            # What it follows may be among those that were recorded just now.
            if self._follows_unrecorded_reply(waiting):
                self._waiting[id] = waiting
                continue
            yield waiting.exchange, waiting.since, id in self._ended
            if id not in self._waiting:
                self._ended.discard(id)

    def remember(self, session_id: str, key: int) -> None:
        """A conversation has been matched or opened under this key."""
        if session_id in self._known:
            self._known[session_id].key = key
        else:
            self._known[session_id] = _Known(key, ConversationFold(session_id))
        self._known.move_to_end(session_id)
        while len(self._known) > MATCHED_CONVERSATIONS_MAX:
            self._known.popitem(last=False)

    def _update(self, head: SessionHead) -> None:
        known = self._known.get(head.session_id)
        state = None if known is None else self._matcher.find_state(known.key)
        if state is not None and state.observer.recorder.is_at(head.event_count, head.last_event_id):
            return
        fold = ConversationFold(head.session_id) if known is None else known.fold
        # Includes the events of this process, which are written first if they were not yet.
        for event in self._log.read(head.session_id, after=fold.last_event_id or None):
            fold.add(event)
        conversation = fold.describe()
        if conversation is None:
            return
        if known is None or state is None:
            key, _ = self._memory.add_recorded(conversation)
            self._known[head.session_id] = known = _Known(key, fold)
        else:
            state.observer.recorder.continue_from(conversation.resumed)
        self._matcher.update(
            known.key,
            conversation.request,
            conversation.replies,
            open_requests=conversation.open_requests,
            is_answered=conversation.is_answered,
        )
        self.remember(head.session_id, known.key)

    def _is_ahead(self, at: float) -> bool:
        """Whether a recorder has not recorded all that ended before this time."""
        is_past = at <= self._others_until and self._others_until != float("inf")
        return not is_past and at > self._ask_others()

    def _ask_others(self) -> float:
        """Until when the other recorders have recorded everything that ended; infinite if there are none."""
        now = self._clock()
        if now - self._asked_at >= ASK_AGAIN_SECONDS:
            leases = self._work.list_leases(RECORDER_LEASE)
            others = (lease for lease in leases if lease.name != self._lease)
            present = (lease for lease in others if lease.seconds_left > -ABSENT_SECONDS_MAX)
            self._others_until = min((_parse_time(lease.value) for lease in present), default=float("inf"))
            self._asked_at = now
        return self._others_until


def _parse_time(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return float("inf")


class RecorderLease:
    """Tells other replicas up to which time everything that ended is on the log."""

    def __init__(self, work: SharedWorkStore, spool_name: str, clock: Clock) -> None:
        self.name = f"{RECORDER_LEASE}{spool_name}"
        self.work, self.clock = work, clock
        self._renewed_at, self._until = float("-inf"), 0.0

    def announce(self, until: float, *, is_behind: bool = False) -> None:
        now = self.clock()
        pause = BEHIND_SECONDS if is_behind else ASK_AGAIN_SECONDS
        is_news = until > self._until and now - self._renewed_at >= pause
        if is_news or now - self._renewed_at >= RENEW_SECONDS:
            self._until = max(until, self._until)
            self.work.take_lease(self.name, self.name, seconds=RECORDER_LEASE_SECONDS, value=repr(self._until))
            self._renewed_at = now

    def release(self) -> None:
        self.work.release_lease(self.name, self.name)
        self.work.forget_leases(ended_seconds_ago=3600.0)
