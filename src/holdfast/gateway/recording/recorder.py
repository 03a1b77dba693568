"""Records forwarded exchanges as sessions in the log: calls, usage, cost and cache verdicts."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from holdfast.catalog.lookup import Models, find_batch_factor, pricing_version, utc_date
from holdfast.clock import NewId
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import (
    CallRecorder,
    ObservedCall,
    ObservedRequest,
    ResumedSession,
    bill_usage,
    observe_without_prompt,
)
from holdfast.engine.request_observer import LearnedRecords, RequestObserver
from holdfast.errors import StoreError
from holdfast.events.conversation_keys import make_caller_scope
from holdfast.events.log import EventLog
from holdfast.events.payloads.calls import GatewayForwarded, RewriteEstimate
from holdfast.events.payloads.session import ParentSession, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.gateway.exchange import INTERRUPTIONS, UNPRICED_USD_PER_MTOK, CallCharge, Exchange, make_learner
from holdfast.gateway.http.headers import name_client
from holdfast.gateway.recording.conversation_match import trace_request
from holdfast.gateway.recording.conversation_memory import CONVERSATION_BYTES_MAX, ConversationMemory, RecordedState
from holdfast.gateway.recording.exchange_decode import (
    decode_batch_results,
    decode_exchange_request,
    decode_exchange_response,
    estimate_other_usage,
    estimate_usage,
    find_other_model,
    keeps_reservation,
    name_by_reply,
    path_header,
    price_batch,
    sum_cache_costs,
)
from holdfast.gateway.recording.fingerprint import ReplyFingerprint, describe_reply, describe_request, short_digest
from holdfast.gateway.recording.restore import (
    RecordedCall,
    RecordedCalls,
    count_unpriced_tokens,
    read_conversations,
    restore_conversations,
)
from holdfast.gateway.recording.rewrite_estimate import ComparedCall, RewriteEstimator, encode_shape
from holdfast.gateway.recording.shared_conversations import RecorderLease, SharedConversations
from holdfast.gateway.recording.worker_process import RecordQueue
from holdfast.gateway.rewrite.findings import add_masked_diffs
from holdfast.gateway.rewrite.request_analysis import GatewayPing
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.gateway.routes import normalize_path
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import get_adapter
from holdfast.providers.tolerant_decode import UNKNOWN_MODEL
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.usage import Usage

_NOT_RECORDED = "a call was not recorded"

ENDPOINT_SESSIONS_MAX = 1_000
WARM_UPS_MAX = 100
BUSY_QUEUE_LENGTH = 64
"""With more queued calls than this, the search for anti-patterns is skipped so that recording can catch up."""

_PROMPT_UNKNOWN = "previous_response_id: the prompt of that response is not known, only what was sent after it"
_UNREADABLE = "a response could not be decoded; its usage is unknown"
_UNSTORABLE = "a call has an event that cannot be stored; only its size is recorded"

OnSpent = Callable[[CallCharge], None]
"""Called with the charge of each call made with a gateway key that has a budget."""


class _ActiveCall(msgspec.Struct, frozen=True):
    """`key` is that of the conversation; None for a call that belongs to none, such as embeddings."""

    key: int | None
    adapter: Adapter
    recorder: CallRecorder
    call: ObservedCall
    compared: ComparedCall | None = None


class _RestoredCall(msgspec.Struct, frozen=True):
    """A call of an earlier process, with its conversation; `key` as in _ActiveCall."""

    call: RecordedCall
    recorder: CallRecorder
    key: int | None


class _WarmUp(msgspec.Struct, frozen=True):
    """A request for no output that was answered. It belongs to the conversation of the request that continues it."""

    exchange: Exchange
    model: str
    usage: Usage


class GatewayRecorder:
    """Queues exchanges and records them in its own thread. Never raises, never blocks, stores no bodies."""

    def __init__(
        self,
        log: EventLog,
        *,
        models: Models,
        new_id: NewId,
        simulated: bool = False,
        volatile: VolatileExtractor | None = None,
        on_spent: OnSpent = lambda charge: None,
        unpriced_usd_per_mtok: float = UNPRICED_USD_PER_MTOK,
        on_session: Callable[[str], None] = lambda session_id: None,
        warnings: WarningLog | None = None,
        make_queue: Callable[[Callable[[Callable[[], None]], None]], RecordQueue[Callable[[], None]]] = RecordQueue,
        recorded: RecordedCalls | None = None,
        conversation_bytes_max: int = CONVERSATION_BYTES_MAX,
        lease: RecorderLease | None = None,
    ) -> None:
        """`recorded` is what the log already has of the exchanges that will come; it is not recorded again.

        Conversations that take more than `conversation_bytes_max` are read from the log again when they continue. With
        a lease, other processes record conversations of the same store.
        """
        self._log, self._models, self._prices_version = log, models, pricing_version(models)
        self._new_id, self._simulated = new_id, simulated
        self._estimator = RewriteEstimator(models, volatile)
        self._on_spent, self._on_session = on_spent, on_session
        self._unpriced_usd_per_mtok = unpriced_usd_per_mtok
        self._warnings = warnings or WarningLog("holdfast.gateway")
        self._conversations = ConversationMemory(log, self._resume_observer, bytes_max=conversation_bytes_max)
        self._endpoint_sessions: dict[tuple[str, str], RequestObserver] = {}
        self._warm_ups: OrderedDict[tuple[str, str], _WarmUp] = OrderedDict()
        self._now, self._is_restored = 0.0, False
        self._recorded = recorded or RecordedCalls()
        self._restored_calls: dict[str, _RestoredCall] = {}
        self._learned = LearnedRecords()
        self._resumed_endpoints: dict[str, CallRecorder] = {}
        self.shared = None if lease is None else SharedConversations(log, self._conversations, lease)
        self.queue = make_queue(self._process)

    def on_request(self, exchange: Exchange) -> None:
        if exchange.is_recorded:
            self._put(functools.partial(self._begin, exchange), exchange)

    def on_end(self, exchange: Exchange) -> None:
        if exchange.is_recorded:
            self._put(functools.partial(self._finish, exchange), exchange)

    def on_ping(self, exchange: Exchange, ping: GatewayPing, response: bytes, at: float) -> None:
        """A keep-alive ping for this exchange's cache entry was answered."""
        self._put(functools.partial(self._record_ping, exchange, ping, response, at), exchange)

    def close(self) -> None:
        self.queue.close()
        with self._warnings.suppress_errors(_NOT_RECORDED):
            while self._warm_ups:
                self._record_abandoned_warm_up()
            self._learned.record_all()

    def _put(self, work: Callable[[], None], exchange: Exchange) -> None:
        if not self.queue.put(work, exchange.buffered_bytes):
            self._warnings.warn_once("recording cannot keep up: calls are forwarded but not recorded; see /metrics")

    def _process(self, work: Callable[[], None]) -> None:
        if not self._is_restored:
            self._is_restored = True
            with self._warnings.suppress_errors("earlier sessions were not restored"):
                self._restore()
        with self._warnings.suppress_errors(_NOT_RECORDED):
            work()

    def _restore(self) -> None:
        """Conversations of earlier processes continue under their old session ids."""
        conversations = restore_conversations(self._log)
        if self.shared is not None:
            # Others, those of other replicas among them, are read from the log when they continue.
            conversations = read_conversations(self._log, sorted(self._recorded.last_events))
        for conversation in conversations:
            key, recorder = self._conversations.add_recorded(conversation)
            if self.shared is not None:
                self.shared.remember(recorder.session_id, key)
            for request_id, call in conversation.calls.items():
                self._restored_calls[request_id] = _RestoredCall(call, recorder, key)

    def _resume_observer(self, resumed: ResumedSession) -> RequestObserver:
        return RequestObserver(self._recorder(SessionStarted, resumed), self._warnings)

    def _begin(self, exchange: Exchange) -> None:
        self._now = exchange.started_at
        if exchange.reads_batch_results:
            return
        if exchange.id in self._recorded.calls:
            exchange.free_request()
            self._resume(exchange, self._recorded.calls[exchange.id])
        elif exchange.id in self._recorded.unstorable:
            self._begin_in_endpoint(exchange, UNKNOWN_MODEL, kind="unreadable", unreadable=(_UNSTORABLE,))
        elif exchange.websocket_call is None or not exchange.websocket_call.is_warm_up:
            self._begin_any(exchange)

    def _resume(self, exchange: Exchange, recorded: RecordedCall) -> None:
        """Continues with an exchange that an earlier process began to record."""
        if recorded.outcome is not None:
            # Its charge may not have been settled before that process ended; a second settlement has no effect.
            usage, unpriced = recorded.outcome.usage, count_unpriced_tokens(recorded.outcome)
            spent = float(recorded.outcome.cost_usd) + unpriced * self._unpriced_usd_per_mtok / 1_000_000
            self._charge(exchange, exchange.id, recorded.started_at, spent, output_tokens=usage.output)
            return
        restored, session_id = self._restored_calls.get(exchange.id), recorded.session_id
        if restored is None:
            if session_id not in self._resumed_endpoints:
                resumed = ResumedSession(session_id, (), self._recorded.last_events[session_id])
                self._resumed_endpoints[session_id] = self._recorder(SessionStarted, resumed)
            restored = _RestoredCall(recorded, self._resumed_endpoints[session_id], None)
        exchange.record = self._make_active(exchange, restored)

    def _make_active(self, exchange: Exchange, restored: "_RestoredCall") -> _ActiveCall:
        call, recorder = restored.call, restored.recorder
        prepared = call.to_request(recorder.find_catalog_row(call.model))
        resumed = ObservedCall(exchange.id, prepared, call.started_at)
        if call.outcome is None:
            recorder.resume_call(resumed)
        return _ActiveCall(restored.key, get_adapter(exchange.target.format), recorder, resumed)

    def _begin_any(self, exchange: Exchange, *, since: float | None = None) -> None:
        """Whatever error of ours a request runs into, it was sent and costs money: then only its size is recorded.

        `since` is when an exchange that had to wait came first.
        """
        self._now = self._now if since is None else exchange.started_at
        try:
            if exchange.target.adapter_name is None:
                # No call of a model, such as embeddings: one session for each endpoint and caller.
                self._begin_in_endpoint(exchange, find_other_model(exchange))
            else:
                with ExitStack() as on_error:
                    self._begin_call(exchange, since, on_error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            reason = f"a request could not be analyzed: {type(error).__name__}"
            self._warnings.warn_once(reason)
            if exchange.record is None:
                self._begin_in_endpoint(exchange, UNKNOWN_MODEL, kind="unreadable", unreadable=(reason,))

    def _begin_call(self, exchange: Exchange, since: float | None, on_error: ExitStack) -> None:
        target, websocket_call = exchange.target, exchange.websocket_call
        adapter = get_adapter(target.format)
        decoded = decode_exchange_request(adapter, exchange, self._conversations.starts)
        body, request, original = decoded.body, decoded.request, exchange.original_body
        description = describe_request(
            request.wire,
            decoded.decoded_body,
            exchange.headers,
            scope=f"{target.mount} {exchange.caller.account}",
            restored_scope=make_caller_scope(target.mount, exchange.caller.key_id),
            previous_response_id=websocket_call.previous_response_id if websocket_call else "",
            start=decoded.start,
            at=exchange.started_at,
        )
        if self.shared is not None and self.shared.must_wait(exchange, description, since=since):
            return
        exchange.free_request()
        match, state = self._conversations.matcher.match_request(
            description, functools.partial(self._open_conversation, exchange)
        )
        on_error.callback(self._conversations.matcher.end_request, match.key, None)
        observer = state.observer
        if self.shared is not None:
            self.shared.remember(observer.recorder.session_id, match.key)
        request, prepared = observer.prepare_unchanged(
            adapter,
            request,
            body,
            path_header(exchange),
            provider=target.provider,
            start=decoded.start.known if decoded.start else None,
        )
        if request is decoded.request:
            self._conversations.remember(state, decoded, description)
        if websocket_call is not None and not websocket_call.is_prompt_known:
            request = msgspec.structs.replace(request, unreadable=(*request.unreadable, _PROMPT_UNKNOWN))
        shared = observer.recorder.count_shared_blocks(prepared.digests)
        blocks = observer.newest.blocks if observer.newest else []
        compared = None
        # A rewrite would not touch a request that it cannot read.
        if not request.unreadable:
            compared = self._compare(exchange, body, original, (prepared, blocks))
        if exchange.changes:
            changes = add_masked_diffs(exchange.changes, original, body) if original is not None else exchange.changes
        else:
            changes = compared.findings if compared is not None else ()
        forwarded = GatewayForwarded(
            reason=match.reason,
            confidence=match.confidence,
            key_id=exchange.caller.key_id,
            user_id=exchange.caller.user_id,
            team_id=exchange.caller.team_id,
            is_improved=bool(exchange.changes),
            changes=changes,
            trace=trace_request(target.mount, description, match),
            shape=encode_shape(blocks[shared:]),
            client=name_client(exchange.headers),
            is_planned=exchange.is_planned,
            unreadable=request.unreadable or msgspec.UNSET,
        )
        self._record_continued_warm_up(exchange, observer.recorder)
        exchange.session_id = observer.recorder.session_id
        self._on_session(exchange.session_id)
        events: list[AnyPayload] = [*exchange.control_changes, forwarded, *exchange.opening_changes]
        call = observer.recorder.begin_call(prepared, *events, request_id=exchange.id)
        if call is not None:
            on_error.pop_all()
            exchange.record = _ActiveCall(match.key, adapter, observer.recorder, call, compared)
            learner = make_learner(target, exchange.caller)
            self._learned.begin_call(observer.recorder, learner, prepared.row, at=self._now)

    def _begin_in_endpoint(
        self, exchange: Exchange, model: str, *, kind: str = "", unreadable: tuple[str, ...] = ()
    ) -> None:
        target = exchange.target
        model = f"{target.provider}:{model}"
        exchange.free_request()
        recorder = self._endpoint_session(exchange, kind).recorder
        row = recorder.find_catalog_row(model)
        prepared = observe_without_prompt(target.provider, model, row, exchange.request_bytes)
        forwarded = exchange.caller.describe_call(f"a call of {target.endpoint}", unreadable)
        call = recorder.begin_call(prepared, forwarded, request_id=exchange.id)
        if call is not None:
            exchange.record = _ActiveCall(None, get_adapter(target.format), recorder, call)

    def _endpoint_session(self, exchange: Exchange, kind: str = "") -> RequestObserver:
        target = exchange.target
        name = f"{target.mount} {target.endpoint}{kind and ' '}{kind}"
        key = (name, exchange.caller.account)
        if key not in self._endpoint_sessions:
            self._endpoint_sessions[key] = self._open_conversation(exchange, None, name=name).observer
            while len(self._endpoint_sessions) > ENDPOINT_SESSIONS_MAX:
                del self._endpoint_sessions[next(iter(self._endpoint_sessions))]
        return self._endpoint_sessions[key]

    def _compare(
        self,
        exchange: Exchange,
        body: bytes,
        original: bytes | None,
        sent: tuple[ObservedRequest, Sequence[EncodedBlock]],
    ) -> ComparedCall | None:
        """The request with and without a rewrite; None while the recorder is behind."""
        if max(self.queue.queue_length, exchange.queue_length) > BUSY_QUEUE_LENGTH:
            return None
        target, account, at = exchange.target, exchange.caller.account, exchange.started_at
        try:
            if exchange.is_planned:
                received, changes = original if exchange.changes else None, exchange.changes
                both = self._estimator.compare_improved(target, received, sent, changes=changes, account=account, at=at)
                return both and both.with_explicit_cache(exchange.explicit_cache_tokens)
            return self._estimator.compare_received(target, body, sent, account=account, at=at)
        except Exception:  # noqa: BLE001 - a body we cannot parse has no findings; it is still recorded
            return None

    def _open_conversation(
        self, exchange: Exchange, parent_conversation: RecordedState | None, *, name: str | None = None
    ) -> RecordedState:
        session_id = None if parent_conversation is None else parent_conversation.observer.recorder.session_id
        parent = None if session_id is None else ParentSession(session_id, "", session_id, 1)
        make_started = functools.partial(
            SessionStarted, name=exchange.caller.label or name, parent=parent, simulated=self._simulated
        )
        return RecordedState(RequestObserver(self._recorder(make_started), self._warnings))

    def _recorder(
        self, opening: Callable[[str], SessionStarted], resumed: ResumedSession | None = None
    ) -> CallRecorder:
        return CallRecorder(
            self._log,
            models=self._models,
            clock=lambda: self._now,
            new_id=self._new_id,
            warnings=self._warnings,
            session_started=opening,
            resumed=resumed,
            prices_version=self._prices_version,
        )

    def _finish(self, exchange: Exchange) -> None:
        if exchange.reads_batch_results:
            self._record_batch(exchange)
            return
        if self.shared is not None and self.shared.note_end(exchange):
            return
        if exchange.websocket_call is not None and exchange.websocket_call.is_warm_up:
            if self._end_warm_up(exchange):
                return
            self._begin_any(exchange)
        active = exchange.record
        if not isinstance(active, _ActiveCall):
            return
        self._now = exchange.ended_at
        reply: ReplyFingerprint | None = None
        try:
            if exchange.id in self._recorded.unstorable:
                self._record_unreadable_outcome(exchange, active, _UNSTORABLE)
            else:
                reply = self._record_outcome(exchange, active)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the call was made and costs money
            self._record_unreadable_outcome(
                exchange, active, f"a response could not be analyzed: {type(error).__name__}"
            )
        finally:
            exchange.free_response()
            self._learned.end_call(active.recorder)
            if active.key is not None:
                self._conversations.matcher.end_request(active.key, reply)
            if not exchange.is_planned:
                # Only a planner sends pings, which repeat the call; nothing else follows it.
                exchange.record = None

    @property
    def pending_ids(self) -> frozenset[str]:
        """Exchanges that are not recorded yet: those that wait, and warm-ups that no request has continued."""
        waiting = self.shared.waiting_ids if self.shared is not None else ()
        return frozenset(waiting).union(warm_up.exchange.id for warm_up in self._warm_ups.values())

    def record_waiting(self) -> None:
        """Records the exchanges that have waited for another replica and need not any more."""
        for exchange, since, is_ended in self.shared.take_waiting() if self.shared is not None else ():
            self._process(functools.partial(self._begin_any, exchange, since=since))
            if is_ended and exchange.id not in self.pending_ids:
                self._process(functools.partial(self._finish, exchange))

    def record_abandoned_warm_ups(self, *, ended_before: float) -> None:
        with self._warnings.suppress_errors(_NOT_RECORDED):
            while self._warm_ups and next(iter(self._warm_ups.values())).exchange.ended_at < ended_before:
                self._record_abandoned_warm_up()

    def _end_warm_up(self, exchange: Exchange) -> bool:
        """Keeps an answered warm-up until a request continues it. False if it failed, which is recorded as a call."""
        response = decode_exchange_response(exchange, get_adapter(exchange.target.format))
        if response.reply is None or not response.is_complete:
            return False
        model = f"{exchange.target.provider}:{response.reply.model}"
        self._warm_ups[exchange.caller.account, response.reply.id] = _WarmUp(exchange, model, response.reply.usage)
        exchange.free_request()
        exchange.free_response()
        while len(self._warm_ups) > WARM_UPS_MAX:
            self._record_abandoned_warm_up()
        return True

    def _record_continued_warm_up(self, exchange: Exchange, recorder: CallRecorder) -> None:
        call = exchange.websocket_call
        warm_up = self._warm_ups.pop((exchange.caller.account, call.previous_response_id), None) if call else None
        if warm_up is not None:
            self._record_warm_up(warm_up, recorder)

    def _record_abandoned_warm_up(self) -> None:
        """The oldest warm-up, in a session of its own kind, because no conversation continued it."""
        _, warm_up = self._warm_ups.popitem(last=False)
        self._record_warm_up(warm_up, self._endpoint_session(warm_up.exchange, "warm-ups").recorder)

    def _record_warm_up(self, warm_up: _WarmUp, recorder: CallRecorder) -> None:
        exchange = warm_up.exchange
        if exchange.started_at in self._recorded.pings:
            return
        row = recorder.find_catalog_row(warm_up.model)
        prepared = observe_without_prompt(exchange.target.provider, warm_up.model, row, exchange.request_bytes)
        cost = recorder.record_prewarm(prepared, warm_up.usage, at=exchange.started_at, request_id=exchange.id)
        self._charge(exchange, exchange.id, exchange.started_at, float(cost))

    def _record_ping(self, exchange: Exchange, ping: GatewayPing, response: bytes, at: float) -> None:
        active, restored = exchange.record, self._restored_calls.get(exchange.id)
        if active is None and restored is not None:
            active = exchange.record = self._make_active(exchange, restored)
        if isinstance(active, _ActiveCall) and at not in self._recorded.pings:
            self._now = at
            result = ping.to_result(at, active.adapter.decode_reply(response).usage)
            state = None if active.key is None else self._conversations.matcher.find_state(active.key)
            # After an eviction, the conversation goes on with a recorder that was restored from the log.
            recorder = active.recorder if state is None else state.observer.recorder
            cost = recorder.record_ping(active.call, result, kind=ping.kind, reason=ping.reason)
            if active.compared is not None:
                self._estimator.refresh(active.compared, at)
            self._charge(exchange, exchange.make_ping_id(at), at, float(cost))

    def _record_outcome(self, exchange: Exchange, active: _ActiveCall) -> ReplyFingerprint | None:
        active.recorder.record_cache_changes(exchange.closing_changes)
        response = decode_exchange_response(exchange, active.adapter)
        reply, failure = response.reply, response.failure
        described = describe_reply(reply) if reply is not None else None
        if response.unreadable and reply is None:
            self._warnings.warn_once(_UNREADABLE)
        recorder, call = active.recorder, name_by_reply(active.recorder, active.call, reply)
        usage = bill_usage(call, reply.usage) if reply is not None else Usage()
        # OpenAI streams usage only on request; a model call without it is estimated, never free.
        has_usage = usage != Usage() or exchange.target.adapter_name is None
        if reply is not None and response.is_complete and has_usage:
            estimate = self._estimate_rewrite(active, bill_usage(call, reply.usage))
            trace, at = described.to_trace() if described else None, exchange.first_byte_at
            recorder.complete_call(call, reply, unreadable=response.unreadable, rewrite=estimate, trace=trace, begun=at)
        elif failure is not None:
            # Only the kind and status: the provider's message may quote the prompt.
            message = f"{failure.kind} (HTTP status {failure.status or exchange.status})"
            recorder.fail_call(call, failure.kind, message, reply)
        elif exchange.end == "whole":
            usage = bill_usage(call, estimate_usage(exchange, reply, call.prepared))
            message = response.unreadable or "the response has no usage"
            recorder.fail_call(call, "unreadable", message, estimated_usage=usage)
        elif exchange.end != "unreachable" and exchange.may_have_reply:
            # The request was sent, so it is not free, and what came of the response is billed: a stream that is cut
            # ends before its usage, and at Anthropic before the count of its output.
            usage = bill_usage(call, estimate_usage(exchange, reply, call.prepared))
            recorder.fail_call(call, *INTERRUPTIONS[exchange.end], estimated_usage=usage)
        else:
            recorder.fail_call(call, *INTERRUPTIONS[exchange.end], reply)
        if (reply is None or not response.is_complete or not has_usage) and active.compared is not None:
            # It wrote nothing to a cache that is known (a 429 or 529).
            self._estimator.discard(active.compared)
        self._charge_call(exchange, recorder, call, usage)
        return described

    def _record_unreadable_outcome(self, exchange: Exchange, active: _ActiveCall, reason: str) -> None:
        """Has no effect on a call whose outcome is recorded."""
        self._warnings.warn_once(reason)
        usage = estimate_usage(exchange, None, active.call.prepared) if exchange.may_have_reply else Usage()
        active.recorder.fail_call(active.call, "unreadable", reason, estimated_usage=usage)
        self._charge_call(exchange, active.recorder, active.call, usage)

    def _charge_call(self, exchange: Exchange, recorder: CallRecorder, call: ObservedCall, usage: Usage) -> None:
        if exchange.caller.has_budget:
            if keeps_reservation(exchange):
                return
            if usage == Usage() and exchange.is_answered:
                usage = estimate_other_usage(exchange)
            caches = sum_cache_costs(exchange, call.prepared.row, self._unpriced_usd_per_mtok)
            spent = self._spent_usd(recorder, call, usage) + caches
            self._charge(exchange, exchange.id, call.started_at, spent, output_tokens=usage.output)

    def _charge(self, exchange: Exchange, id: str, at: float, dollars: float, *, output_tokens: int = 0) -> None:
        if exchange.caller.key_id is not None and exchange.caller.has_budget:
            self._on_spent(CallCharge(id, exchange.caller.key_id, at, dollars, output_tokens))

    def _estimate_rewrite(self, active: _ActiveCall, usage: Usage) -> RewriteEstimate | None:
        if active.compared is None or not usage.tokens_sent:
            return None
        try:
            return self._estimator.estimate(active.compared, usage, active.recorder.cost_of(active.call, usage))
        except Exception:  # noqa: BLE001 - without an estimate it is still recorded; the cache model may refuse it
            return None

    def _spent_usd(self, recorder: CallRecorder, call: ObservedCall, usage: Usage) -> float:
        """What a call counts against a budget; one whose model has no price is estimated, never free."""
        row = call.prepared.row
        if row is not None and row.prices:
            return float(recorder.cost_of(call, usage))
        return (usage.tokens_sent + usage.output) * self._unpriced_usd_per_mtok / 1_000_000

    def _record_batch(self, exchange: Exchange) -> None:
        """Records the usage in the results of a batch: one session for each batch, one call for each of its models."""
        target, caller, results = exchange.target, exchange.caller, decode_batch_results(exchange)
        exchange.free_response()
        path = normalize_path(target.path) or target.path
        session_id = f"batch-{short_digest(f'{target.mount}{path}'.encode())}"
        # Clients read the same results again; an id made from the path counts them once, after a restart too.
        if not results or next(iter(self._log.read(session_id)), None) is not None:
            return
        self._now = exchange.ended_at
        make_started = functools.partial(
            SessionStarted, name=caller.label or f"{target.mount} {path[-80:]}", simulated=self._simulated
        )
        recorder = self._recorder(make_started, ResumedSession(session_id, (), ""))
        for name in dict.fromkeys(result.model for result in results):
            usages = [result.usage for result in results if result.model == name]
            self._record_batch_usage(exchange, recorder, target.model_names.get(name, name), usages)

    def _record_batch_usage(
        self, exchange: Exchange, recorder: CallRecorder, model: str, usages: Sequence[Usage]
    ) -> None:
        provider = exchange.target.provider
        model = f"{provider}:{model}"
        row, factor = recorder.find_catalog_row(model), find_batch_factor(provider)
        reason = f"{len(usages)} results of a batch"
        reason += ", at list price: no batch price is known" if row and factor is None else ""
        forwarded = exchange.caller.describe_call(reason)
        call = recorder.begin_call(observe_without_prompt(provider, model, row, exchange.response_bytes), forwarded)
        if call is None:
            return
        total, costs = sum(usages, Usage()), price_batch(row, usages, utc_date(self._now), factor)
        recorder.complete_call(call, Reply((), "end_turn", total), costs=costs)
        spent = float(costs[0]) if row and row.prices else self._spent_usd(recorder, call, total)
        self._charge(exchange, f"{recorder.session_id}.{model}", call.started_at, spent)
