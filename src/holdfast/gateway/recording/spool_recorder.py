"""Records what a gateway has spooled, each exchange once, whether the store, this process or the gateway fails.

The spool is the truth until the log has it. A failure of any append ends a pass; the next one opens the store again,
continues at the checkpoint, and skips what the log already has.
"""

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NoReturn

import msgspec

from holdfast.clock import Clock
from holdfast.engine.guard import WarningLog
from holdfast.errors import StoreError, UnstorableEventError
from holdfast.events.log import Event, EventLog, SessionRow, event_type_of
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
)
from holdfast.events.payloads.session import SessionStarted
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.recording.recorder import BUSY_QUEUE_LENGTH, GatewayRecorder
from holdfast.gateway.recording.restore import RecordedCalls, find_recorded_calls
from holdfast.gateway.recording.shared_conversations import CLOCK_SKEW_SECONDS
from holdfast.gateway.recording.spool import SpoolPosition, SpoolReader
from holdfast.gateway.recording.worker_process import (
    EndMessage,
    PingMessage,
    RequestMessage,
    SpoolMessage,
    decode_spool_message,
)

logger = logging.getLogger("holdfast.gateway")

TRACKED_EXCHANGES_MAX = 1_000
"""Ended exchanges that are remembered for pings; the log has the others."""

WARM_UP_SECONDS_MAX = 60.0
"""How long a warm-up waits for the request that continues it. Until it is recorded, the spool has to keep it."""

BUSY_BACKLOG_BYTES = 8 * 1024 * 1024
"""With a larger backlog, the search for anti-patterns is skipped so that recording can catch up."""

BATCH_FRAMES_MAX, BATCH_EVENTS_MAX = 500, 2_000
"""The events of as many frames are one append. Each append, and each commit, has a cost of its own."""

UNCONFIRMED_BATCHES_MAX = 4
"""Bounds the memory of appends that the store has not confirmed."""

CONFIRM_SECONDS_MAX = 60.0
GIVEN_UP = 2
"""So often the database has refused an exchange: the second time it was only its size."""


class UnstorableExchangeError(StoreError):
    """The store does not take what was to be recorded of an exchange; the next pass records its size only."""


MakeRecorder = Callable[[EventLog, WarningLog, RecordedCalls], GatewayRecorder]


class _SpooledExchange:
    """An exchange with the positions before its first frame, and before the one that ended it."""

    __slots__ = ("end", "exchange", "start")

    def __init__(self, exchange: Exchange, start: SpoolPosition) -> None:
        self.exchange = exchange
        self.start = start
        self.end: SpoolPosition | None = None


class SpoolPass:
    """One pass over a spool with one open store. Every method raises StoreError once the store has failed."""

    def __init__(
        self,
        reader: SpoolReader,
        log: EventLog,
        make_recorder: MakeRecorder,
        *,
        clock: Clock,
        unstorable: Counter[str] | None = None,
    ) -> None:
        """`unstorable` counts how often UnstorableExchangeError was raised for an exchange; passes add to it."""
        self._reader = reader
        self._clock = clock
        self._log = _BatchedLog(log, Counter() if unstorable is None else unstorable)
        self._failures = _CountedFailures("holdfast.gateway")
        reader.rewind()
        recorded = msgspec.structs.replace(
            find_recorded_calls(log, _list_exchanges(reader)), unstorable=frozenset(self._log.unstorable)
        )
        self._recorder = make_recorder(self._log, self._failures, recorded)
        # Exchanges whose end is not on the log, by id, in the order in which they began: a later pass reads them again.
        self._open: OrderedDict[str, _SpooledExchange] = OrderedDict()
        self._ended: OrderedDict[str, Exchange] = OrderedDict()
        self._unconfirmed: deque[tuple[SpoolPosition, Future[None]]] = deque()
        # Up to which time the spool was read until a position, and what of that is confirmed.
        self._read: deque[tuple[SpoolPosition, float]] = deque()
        self._confirmed_until = 0.0
        # The earliest end of an exchange that was read and is not confirmed: one that has waited is appended late.
        self._unconfirmed_end = float("inf")
        self._undecodable = -reader.damaged_count
        self.recorded = 0
        """Exchanges of this pass that were recorded to their end."""

    @property
    def lost(self) -> int:
        """Exchanges of this pass that cannot be recorded, by an error of our own."""
        undecodable = self._undecodable + self._reader.damaged_count
        return self._failures.count + undecodable + self._log.dropped_count

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self._unconfirmed)

    def record_available(self, *, frames_max: int | None = None, is_isolated: bool = False) -> int:
        """Records the frames that the spool has now; returns how many there were.

        With `is_isolated`, each exchange is appended alone, to find the one that the database refuses.
        """
        self._log.is_isolated = is_isolated
        batch_start = before = self._reader.position
        count, until = 0, self._clock()
        # If nothing can be decoded, nothing more is known to be recorded.
        latest_at = self._confirmed_until + CLOCK_SKEW_SECONDS
        is_busy = self._reader.backlog_bytes > BUSY_BACKLOG_BYTES
        for payload in self._reader.read_frames():
            try:
                message = decode_spool_message(payload)
                latest_at = message.at
                self._handle(message, before, is_busy=is_busy)
            except msgspec.MsgspecError as error:
                # Of another version. Only the type of the error: its message could quote the prompt.
                self._undecodable += 1
                logger.warning("a spooled exchange cannot be decoded: %s", type(error).__name__)
            before, count = self._reader.position, count + 1
            if self._log.pending_count >= BATCH_EVENTS_MAX or count % BATCH_FRAMES_MAX == 0:
                self._append_batch(batch_start)
                batch_start = before
                if len(self._unconfirmed) >= UNCONFIRMED_BATCHES_MAX:
                    _wait_for(self._unconfirmed[0][1])
                    self.confirm()
            if count == frames_max:
                until = latest_at
                break
        self._append_batch(batch_start)
        self._read.append((self._reader.position, until - CLOCK_SKEW_SECONDS))
        return count

    def record_waiting(self) -> None:
        """Records the exchanges that waited for another replica and need not any more."""
        waiting = self._recorder.pending_ids
        self._recorder.record_waiting()
        for id in waiting - self._recorder.pending_ids:
            if id in self._open and self._open[id].end is not None:
                self._open[id].end = self._reader.position

    @property
    def has_waiting(self) -> bool:
        return self._recorder.shared is not None and bool(self._recorder.shared.waiting_ids)

    @property
    def recorded_until(self) -> float:
        """Everything that ended before this time is on the log."""
        shared = self._recorder.shared
        if shared is None:
            return self._confirmed_until
        return min(self._confirmed_until, self._unconfirmed_end, shared.recorded_until)

    def _append_batch(self, start: SpoolPosition) -> None:
        """Appends the events of the frames from `start` on."""
        append = self._log.append_pending()
        if append is not None:
            self._unconfirmed.append((start, append))

    def skip_first(self) -> None:
        """Gives up the exchange at the checkpoint, which ended several recorders."""
        payload = next(self._reader.read_frames(), None)
        if payload is not None:
            self._undecodable += 1
            self._reader.save_checkpoint(self._reader.position)
            logger.warning("a spooled exchange ended the recorder several times, and is not recorded")

    def confirm(self) -> None:
        """Moves the checkpoint to the first exchange that is not on the log. Raises StoreError if an append failed."""
        self._recorder.record_abandoned_warm_ups(ended_before=self._clock() - WARM_UP_SECONDS_MAX)
        self._append_batch(self._reader.position)
        while self._unconfirmed and self._unconfirmed[0][1].done():
            self._unconfirmed.popleft()[1].result()
        confirmed = self._unconfirmed[0][0] if self._unconfirmed else self._reader.position
        while self._read and self._read[0][0] <= confirmed:
            self._confirmed_until = self._read.popleft()[1]
        pending, self._unconfirmed_end = self._recorder.pending_ids, float("inf")
        for id, spooled in tuple(self._open.items()):
            if spooled.end is None or id in pending:
                continue
            if not self._unconfirmed or spooled.end < confirmed:
                del self._open[id]
            else:
                self._unconfirmed_end = min(self._unconfirmed_end, spooled.exchange.ended_at)
        first = next(iter(self._open.values()), None)
        self._reader.save_checkpoint(confirmed if first is None else min(confirmed, first.start))

    def wait_until_confirmed(self) -> None:
        """Returns once everything that was read is on the log. Raises StoreError if it cannot be."""
        self._append_batch(self._reader.position)
        for _, append in tuple(self._unconfirmed):
            _wait_for(append)
        self.confirm()

    def end_interrupted(self) -> None:
        """Nothing will be appended to the spool any more: exchanges without an end were interrupted."""
        for spooled in tuple(self._open.values()):
            if spooled.end is None:
                exchange = spooled.exchange
                exchange.end, exchange.ended_at = "stopped", max(exchange.started_at, self._clock())
                self._end(spooled, self._reader.position)

    def finish(self) -> None:
        """Records what is left of a spool that has no writer."""
        self.end_interrupted()
        self._recorder.close()
        self.wait_until_confirmed()
        self._open.clear()
        self.confirm()

    def _handle(self, message: SpoolMessage, before: SpoolPosition, *, is_busy: bool) -> None:
        match message:
            case RequestMessage():
                exchange = _restore_exchange(message)
                exchange.queue_length = BUSY_QUEUE_LENGTH + 1 if is_busy else 0
                self._open[message.id] = _SpooledExchange(exchange, before)
                self._recorder.on_request(exchange)
            case EndMessage() if message.id in self._open:
                spooled = self._open[message.id]
                exchange = spooled.exchange
                exchange.ended_at, exchange.status, exchange.end = message.at, message.status, message.end
                exchange.response_headers, exchange.closing_changes = message.headers, message.cache_changes
                exchange.first_byte_at = message.first_byte_at
                exchange.restore_response(message.body, message.size_bytes)
                self._end(spooled, before)
            case EndMessage():
                # Its request could not be written, and was counted as lost then.
                pass
            case PingMessage():
                pinged = self._ended.get(message.id) or Exchange(
                    message.target, [], message.caller, message.at, id=message.id
                )
                self._recorder.on_ping(pinged, message.ping, message.response, message.at)

    def _end(self, spooled: _SpooledExchange, before: SpoolPosition) -> None:
        exchange, spooled.end = spooled.exchange, before
        self._recorder.on_end(exchange)
        self.recorded += 1
        self._ended[exchange.id] = exchange
        while len(self._ended) > TRACKED_EXCHANGES_MAX:
            self._ended.popitem(last=False)


def _wait_for(append: Future[None]) -> None:
    try:
        append.exception(CONFIRM_SECONDS_MAX)
    except TimeoutError:
        raise StoreError(f"the store has not confirmed an append for {CONFIRM_SECONDS_MAX:.0f} s") from None


def _restore_exchange(message: RequestMessage) -> Exchange:
    exchange = Exchange(
        message.target, message.headers, message.caller, message.at, method=message.method, id=message.id
    )
    exchange.restore_request(message.body, message.size_bytes)
    exchange.original_body, exchange.changes = message.original_body, message.changes
    exchange.websocket_call, exchange.is_planned = message.websocket_call, message.is_planned
    exchange.explicit_cache_tokens, exchange.opening_changes = message.explicit_cache_tokens, message.cache_changes
    return exchange


class _MessageId(msgspec.Struct, frozen=True):
    """What all messages have in common."""

    id: str


_decode_id = msgspec.msgpack.Decoder(_MessageId).decode


def _list_exchanges(reader: SpoolReader) -> list[str]:
    """The exchanges that have a frame after the checkpoint; leaves the reader where it was."""
    ids: dict[str, None] = {}
    for payload in reader.read_frames():
        with suppress(msgspec.MsgspecError):
            ids[_decode_id(payload).id] = None
    reader.rewind()
    return list(ids)


class _CountedFailures(WarningLog):
    """Counts what is not recorded because of an error of our own; a failure of the store ends the pass instead."""

    def __init__(self, logger: str) -> None:
        super().__init__(logger)
        self.count = 0

    def handle_error(self, error: Exception, effect: str) -> bool:
        if isinstance(error, StoreError):
            return False
        self.count += 1
        return super().handle_error(error, effect)


def _find_exchange(events: Sequence[Event], event_id: str) -> str | None:
    """The exchange that an event describes; None for what is learned from several."""
    session_ids = {event.id: event.session_id for event in events}
    follows = False
    for event in events:
        follows = follows or event.id == event_id
        if not follows or event.session_id != session_ids[event_id]:
            continue
        match event.payload:
            case LlmCallStarted() | LlmCallCompleted() | LlmCallFailed() as payload:
                return payload.request_id
            case SessionStarted() | GatewayForwarded() | RequestPrepared():
                # Before the start of its call.
                pass
            case _:
                return None
    return None


def _name_events(events: Sequence[Event]) -> str:
    """What is learned from several exchanges, or added to one, has no id that the next pass would use again."""
    return f"{events[-1].session_id} {event_type_of(events[-1].payload)}"


class _BatchedLog(EventLog):
    """A log that collects the appends of many frames and makes them one. What it reads includes them."""

    def __init__(self, log: EventLog, unstorable: Counter[str]) -> None:
        self._log = log
        self.unstorable = unstorable
        self.is_isolated = False
        self.dropped_count = 0
        self._pending: list[Event] = []
        # Appends that the store has not confirmed, with their sessions.
        self._unconfirmed: deque[tuple[Future[None], frozenset[str]]] = deque()
        # The caller would only log a failure.
        self._accepted: Future[None] = Future()
        self._accepted.set_result(None)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def append_pending(self) -> Future[None] | None:
        """Appends what was collected; None if there is nothing. Raises UnstorableExchangeError."""
        events, self._pending = self._pending, []
        while events:
            append = self._log.append(events, at_head=True)
            if self.is_isolated:
                _wait_for(append)
            # Known at once: a store that cannot encode an event does not queue it.
            error = append.exception() if append.done() else None
            if not isinstance(error, UnstorableEventError) or not (error.event_id or self.is_isolated):
                self._forget_confirmed()
                self._unconfirmed.append((append, frozenset(event.session_id for event in events)))
                return append
            name = _find_exchange(events, error.event_id or events[-1].id)
            if not error.event_id:
                self._give_up(name or _name_events(events), error, is_exchange=name is not None)
            if name is not None and name not in self.unstorable:
                self.unstorable[name] += 1
                raise UnstorableExchangeError(str(error))
            self.dropped_count += 1
            events = [event for event in events if event.id != error.event_id]
        return None

    def _give_up(self, name: str, error: StoreError, *, is_exchange: bool) -> NoReturn:
        """The database has refused an append: at first all but the size of its exchange is given up, then all."""
        self.unstorable[name] += 1 if is_exchange else GIVEN_UP
        self.dropped_count += self.unstorable[name] >= GIVEN_UP
        raise UnstorableExchangeError(str(error))

    def _forget_confirmed(self) -> None:
        while self._unconfirmed and self._unconfirmed[0][0].done():
            self._unconfirmed.popleft()

    def append(self, events: Sequence[Event], *, at_head: bool = False) -> Future[None]:
        if self.unstorable and self._is_given_up(events):
            return self._accepted
        self._pending += events
        if self.is_isolated:
            self.append_pending()
        return self._accepted

    def _is_given_up(self, events: Sequence[Event]) -> bool:
        name = _find_exchange(events, events[-1].id) or _name_events(events)
        return self.unstorable[name] >= GIVEN_UP

    def read(self, session_id: str, *, after: str | None = None) -> Iterator[Event]:
        # Only for this session: conversations that were evicted are read while the events of many others wait.
        if any(event.session_id == session_id for event in self._pending):
            self.append_pending()
        for append, session_ids in tuple(self._unconfirmed):
            if session_id in session_ids:
                _wait_for(append)
                append.result()
        return self._log.read(session_id, after=after)

    def sessions(self, *, limit: int | None = None) -> tuple[SessionRow, ...]:
        return self._log.sessions(limit=limit)

    def find_sessions(self, event_ids: Sequence[str]) -> frozenset[str]:
        return self._log.find_sessions(event_ids)

    def learned_events(self, *, limit: int) -> tuple[Event, ...]:
        return self._log.learned_events(limit=limit)

    def delete(self, session_id: str) -> int:
        return self._log.delete(session_id)

    def close(self) -> None:
        """The pass does not own the log."""
