"""Records the calls of one conversation of another program as events, as a session of ours would."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from decimal import Decimal
from threading import RLock

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none, price_at, pricing_version, utc_date
from holdfast.catalog.schema import Model
from holdfast.clock import Clock, NewId
from holdfast.economics.cost import cost_usd
from holdfast.engine.cache.memory_fold import MemoryFold
from holdfast.engine.call_record import split_writes_by_ttl
from holdfast.engine.guard import WarningLog
from holdfast.errors import FailureKind
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged, PingKind
from holdfast.events.payloads.calls import (
    UNPRICED,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ReplyTrace,
    RequestPrepared,
    RewriteEstimate,
)
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.accounting import CallRecord
from holdfast.ledger.calls import iter_calls
from holdfast.planning.learned import LearningScope, has_new_evidence, make_learned_record
from holdfast.planning.policy import PingResult
from holdfast.types.blocks import THINKING_TYPES, ToolUse
from holdfast.types.json_encoding import JSON_ENCODING_VERSION
from holdfast.types.prompt import Plan, PrefixChange
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import PrefixDigest, count_shared_blocks
from holdfast.types.usage import Usage

_NOT_RECORDED = "a call is not recorded"
KNOWN_HEADS_MAX = 64
"""Appends of one session that may not be on the log yet."""


class ObservedRequest(msgspec.Struct, frozen=True):
    """A request in our encoding; `row` is None if the model is not in the catalog.

    `expects_diagnosis`: the caller has asked the provider for a cache diagnosis against an earlier request.
    `unreadable` names the parts that are recorded as raw JSON, where no other event does.
    """

    model: str
    provider: str
    row: Model | None
    plan: Plan
    digests: tuple[PrefixDigest, ...]
    parameters_digest: str
    body_bytes: int
    tokens: int
    expects_diagnosis: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    change: PrefixChange | None = None
    unreadable: tuple[str, ...] = ()


class ObservedCall(msgspec.Struct, frozen=True):
    """A call in progress."""

    request_id: str
    prepared: ObservedRequest
    started_at: float


def bill_usage(call: ObservedCall, usage: Usage) -> Usage:
    """The usage of a call, with its cache writes split by the TTLs that it requested."""
    prepared = call.prepared
    return split_writes_by_ttl(usage, prepared.provider, prepared.plan.breakpoints, prepared.digests)


def observe_without_prompt(provider: str, model: str, row: Model | None, body_bytes: int) -> ObservedRequest:
    """A request without content: it is no prompt, and nothing of it is cached."""
    return ObservedRequest(
        model=model,
        provider=provider,
        row=row,
        plan=Plan(),
        digests=(),
        parameters_digest="",
        body_bytes=body_bytes,
        tokens=0,
    )


class ResumedSession(msgspec.Struct, frozen=True):
    """A session that an earlier process recorded: the digests of its last request, and its last event.

    Without a last event, it is a new session with a given id. `memory` is folded from its events, if it is needed.
    """

    session_id: str
    digests: tuple[PrefixDigest, ...]
    last_event_id: str
    memory: MemoryFold | None = None
    event_count: int = 0


class CallRecorder:
    """Thread-safe. No method raises because of a client's or a store's behaviour."""

    def __init__(
        self,
        log: EventLog,
        *,
        models: Models,
        clock: Clock,
        new_id: NewId,
        warnings: WarningLog,
        session_started: Callable[[str], SessionStarted] = SessionStarted,
        resumed: ResumedSession | None = None,
        prices_version: str = "",
    ) -> None:
        """`prices_version` is that of `models`, for a caller that has computed it."""
        self.log = log
        """The event log; `log.read(recorder.session_id)` has this recorder's events."""
        self._models = models
        self._clock = clock
        self._new_id = new_id
        self._warnings = warnings
        self._session_started = session_started
        self._lock = RLock()
        self._digests: tuple[PrefixDigest, ...] = resumed.digests if resumed else ()
        self._last_event_id = (resumed.last_event_id if resumed else "") or None
        self.memory = (resumed.memory if resumed else None) or MemoryFold()
        """What the events so far say about the cache of this conversation."""
        self._event_count = resumed.event_count if resumed else 0
        # The last event after each of the newest appends, by the number of events until then.
        self._heads: OrderedDict[int, str | None] = OrderedDict({self._event_count: self._last_event_id})
        self._written: Future[None] | None = None
        self._open: set[str] = set()
        self._pricing_version = prices_version or pricing_version(models)
        self.session_id = resumed.session_id if resumed else new_id(clock())

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The completed calls, oldest first."""
        return tuple(iter_calls(self._events()))

    def find_catalog_row(self, model: str) -> Model | None:
        return find_model_or_none(model, self._models)

    def count_shared_blocks(self, digests: Sequence[PrefixDigest]) -> int:
        """How many leading blocks a request shares with the previous one."""
        with self._lock:
            return count_shared_blocks(self._digests, digests)

    def is_at(self, event_count: int, last_event_id: str | None) -> bool:
        """Whether the session has no events of another process, by what the log has of it now."""
        with self._lock:
            return event_count in self._heads and self._heads[event_count] == last_event_id

    def continue_from(self, resumed: ResumedSession) -> None:
        """Another process has continued the session; nothing of this one may be unwritten."""
        with self._lock:
            self._digests, self._last_event_id = resumed.digests, resumed.last_event_id or None
            self.memory = resumed.memory or self.memory
            self._event_count = resumed.event_count
            self._heads = OrderedDict({self._event_count: self._last_event_id})

    def begin_call(self, prepared: ObservedRequest, *also: AnyPayload, request_id: str = "") -> ObservedCall | None:
        """Record the start of a call, with the events `also` before it; None if recording failed."""
        with self._lock, self._warnings.suppress_errors(_NOT_RECORDED):
            at = self._clock()
            shared_blocks = count_shared_blocks(self._digests, prepared.digests)
            call = ObservedCall(request_id or self._new_id(at), prepared, at)
            self._write(
                *also,
                RequestPrepared(
                    plan=prepared.plan,
                    encoding=JSON_ENCODING_VERSION,
                    shared_blocks=shared_blocks,
                    digests=prepared.digests[shared_blocks:],
                    parameters_digest=prepared.parameters_digest,
                    body_bytes=prepared.body_bytes,
                    settings=prepared.settings,
                    prefix_change=prepared.change if shared_blocks < len(self._digests) else None,
                    unreadable=prepared.unreadable or msgspec.UNSET,
                ),
                LlmCallStarted(prepared.model, prepared.provider, prepared.tokens, call.request_id),
                request_id=call.request_id,
            )
            self._digests = prepared.digests
            self._open.add(call.request_id)
            return call
        return None

    def resume_call(self, call: ObservedCall) -> None:
        """Continue a call whose start an earlier process recorded."""
        with self._lock:
            self._open.add(call.request_id)

    def complete_call(
        self,
        call: ObservedCall,
        reply: Reply,
        *,
        unreadable: str = "",
        costs: tuple[Decimal, Decimal] | None = None,
        rewrite: RewriteEstimate | None = None,
        trace: ReplyTrace | None = None,
        begun: float | None = None,
    ) -> None:
        """`unreadable` says which part of the response could not be decoded; its usage was.

        `costs` are what was paid, and what would have been without a cache, where list prices do not apply.
        """
        prepared, usage = call.prepared, bill_usage(call, reply.usage)
        completed = LlmCallCompleted(
            model=prepared.model,
            provider=prepared.provider,
            usage=usage,
            cost_usd=self.cost_of(call, usage) if costs is None else costs[0],
            uncached_cost_usd=msgspec.UNSET if costs is None else costs[1],
            pricing_version=self._pricing_version if prepared.row and prepared.row.prices else UNPRICED,
            latency_ms=self._since(call),
            stop_reason=reply.stop_reason,
            produced_tool_calls=sum(isinstance(block, ToolUse) for block in reply.content),
            produced_thinking_blocks=sum(isinstance(block, THINKING_TYPES) for block in reply.content),
            request_id=call.request_id,
            compaction_usage=reply.compaction_usage,
            response_id=reply.id,
            diagnosis=reply.diagnosis if prepared.expects_diagnosis else None,
            unreadable=unreadable or msgspec.UNSET,
            rewrite=rewrite or msgspec.UNSET,
            reply=trace or msgspec.UNSET,
            first_byte_ms=msgspec.UNSET if begun is None else round((begun - call.started_at) * 1000),
        )
        self._end(call, completed)

    def fail_call(
        self,
        call: ObservedCall,
        kind: FailureKind,
        message: str,
        partial: Reply | None = None,
        *,
        estimated_usage: Usage | None = None,
    ) -> None:
        """`estimated_usage` is recorded where the provider charged for the call but its usage is not known."""
        usage = estimated_usage or (bill_usage(call, partial.usage) if partial else Usage())
        failed = LlmCallFailed(
            model=call.prepared.model,
            provider=call.prepared.provider,
            error_class=kind,
            error_message_redacted=message,
            retry_count=0,  # The client retries by itself and does not report how often.
            latency_ms=self._since(call),
            request_id=call.request_id,
            usage=usage,
            cost_usd=self.cost_of(call, usage),
            is_output_estimated=estimated_usage is not None,
        )
        self._end(call, failed)

    def record_ping(self, call: ObservedCall, ping: PingResult, *, kind: PingKind, reason: str) -> Decimal:
        """Record a keep-alive ping after a call; returns its cost."""
        prepared, cost = call.prepared, self.cost_of(call, ping.usage)
        pinged = CachePinged(
            kind=kind,
            model=prepared.model,
            ttl=ping.ttl,
            usage=ping.usage,
            cost_usd=cost,
            pricing_version=self._pricing_version if prepared.row and prepared.row.prices else UNPRICED,
            reason=reason,
            sent_at=ping.at,
            breakpoint_block=ping.block,
            block_count=ping.blocks,
            prefix_tokens=ping.prefix_tokens,
        )
        with self._lock, self._warnings.suppress_errors(_NOT_RECORDED):
            self._write(pinged)
        return cost

    def record_cache_changes(self, changes: Sequence[ExplicitCacheChanged]) -> None:
        """Record what the response to a call said about its explicit cache."""
        if changes:
            with self._lock, self._warnings.suppress_errors(_NOT_RECORDED):
                self._write(*changes)

    def record_prewarm(self, prepared: ObservedRequest, usage: Usage, *, at: float, request_id: str = "") -> Decimal:
        """Record a request for no output that a client sent ahead of a call; returns its cost."""
        call = ObservedCall("", prepared, at)
        usage, cost = bill_usage(call, usage), self.cost_of(call, bill_usage(call, usage))
        prewarmed = CachePinged(
            kind="prewarm",
            model=prepared.model,
            ttl="5m",
            usage=usage,
            cost_usd=cost,
            pricing_version=UNPRICED if prepared.row is None else self._pricing_version,
            reason="a warm-up of the client",
            sent_at=at,
            prefix_tokens=usage.tokens_sent,
        )
        with self._lock, self._warnings.suppress_errors(_NOT_RECORDED):
            self._write(prewarmed, request_id=request_id)
        return cost

    def record_learned(self, scope: LearningScope, *, evidence_only: bool = False) -> None:
        """Record what the conversation has observed, unless that is on the log already.

        `evidence_only`: not if only its idle times are new.
        """
        fold = self.memory
        record = make_learned_record(fold.memory, scope)
        is_new = has_new_evidence(record, fold.learned_record) if evidence_only else record != fold.learned_record
        if fold.memory.calls and is_new:
            with self._lock, self._warnings.suppress_errors(_NOT_RECORDED):
                self._write(record)

    def _end(self, call: ObservedCall, payload: AnyPayload) -> None:
        with self._lock, self._warnings.suppress_errors(_NOT_RECORDED):
            if call.request_id in self._open:
                self._open.discard(call.request_id)
                self._write(payload)

    def _write(self, *payloads: AnyPayload, request_id: str = "") -> None:
        """Append events without waiting, so that no event loop is blocked: a store writes in order, and reads wait.

        The last one has the id of the request if it begins one: so the store can tell by an id which it has, and
        refuses to have one twice.
        """
        at = self._clock()
        events: list[Event] = []
        parent = self._last_event_id
        if parent is None:
            model = next(first.model for first in payloads if isinstance(first, LlmCallStarted | CachePinged))
            payloads = (self._session_started(model), *payloads)
        for payload in payloads:
            id = request_id if request_id and payload is payloads[-1] else self._new_id(at)
            event = Event(id, at, self.session_id, "agent", payload, None, parent)
            events.append(event)
            self.memory.add(at, payload)
            parent = event.id
        self._last_event_id = parent
        self._event_count += len(events)
        self._heads[self._event_count] = parent
        while len(self._heads) > KNOWN_HEADS_MAX:
            self._heads.popitem(last=False)
        self._written = self.log.append(events, at_head=True)
        # A log that collects appends has accepted this one already.
        if not self._written.done() or self._written.exception() is not None:
            self._written.add_done_callback(self._on_written)

    def _on_written(self, written: "Future[None]") -> None:
        with self._warnings.suppress_errors(_NOT_RECORDED):
            written.result()

    def wait_until_written(self) -> None:
        """Returns once the log has what was recorded, or has refused it."""
        with self._lock:
            written = self._written
        if written is not None:
            written.exception()

    def _events(self) -> Iterator[Event]:
        self.wait_until_written()
        return self.log.read(self.session_id)

    def cost_of(self, call: ObservedCall, usage: Usage) -> Decimal:
        """The cost of a call with this usage, as returned by `bill_usage`."""
        row = call.prepared.row
        if row is None or not row.prices:
            return Decimal(0)
        return cost_usd(usage, price_at(row, utc_date(call.started_at), usage.tokens_sent))

    def _since(self, call: ObservedCall) -> int:
        return round((self._clock() - call.started_at) * 1000)
