"""Records forwarded exchanges as sessions in the log: calls, usage, cost and cache verdicts."""

import functools
from collections.abc import Callable

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.clock import NewId
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedCall, ResumedSession, bill_usage
from holdfast.engine.request_observer import RequestObserver
from holdfast.errors import ProviderError
from holdfast.events.log import EventLog
from holdfast.events.payloads.calls import ConversationTrace, GatewayForwarded
from holdfast.events.payloads.session import ParentSession, SessionStarted
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.http.content_encoding import decompress_body
from holdfast.gateway.http.response_parser import Headers
from holdfast.gateway.recording.conversation_match import (
    ConversationMatch,
    ConversationMatcher,
    RequestFingerprint,
    decode_session_hints,
)
from holdfast.gateway.recording.counterfactual import CounterfactualPricer, encode_shape
from holdfast.gateway.recording.restore import make_restored_scope, restore_conversations
from holdfast.gateway.recording.worker_process import RecordQueue
from holdfast.gateway.rewrite.findings import Findings, add_masked_diffs, find_anti_patterns, price_as_sent
from holdfast.gateway.rewrite.rewriter import GatewayPing, RequestRewriter
from holdfast.providers.adapter import PATH_HEADER, Adapter, WireRequest
from holdfast.providers.registry import get_adapter
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.usage import Usage

_NOT_RECORDED = "a call was not recorded"

# Only the start of the system text: volatile lines usually come later.
HEAD_CHARS = 40
DIGEST_CHARS = 16
BUSY_QUEUE_LENGTH = 64
"""With more queued calls than this, the search for anti-patterns is skipped so that recording can catch up."""

_UNREADABLE = "a response could not be decoded; its usage is unknown"

OnSpent = Callable[[str, float, float], None]
"""Called with key id, time and cost in dollars of each call made with a gateway key."""


class _Tracked(msgspec.Struct, frozen=True):
    """The recording state of one conversation."""

    observer: RequestObserver
    pricer: CounterfactualPricer


class _ActiveCall(msgspec.Struct, frozen=True):
    key: int
    adapter: Adapter
    recorder: CallRecorder
    call: ObservedCall
    pricer: CounterfactualPricer
    priced_number: int


class GatewayRecorder:
    """Queues exchanges and records them in its own thread. Never raises, never blocks, stores no bodies."""

    def __init__(
        self,
        log: EventLog,
        *,
        models: Models,
        new_id: NewId,
        simulated: bool = False,
        rewriter: RequestRewriter | None = None,
        on_spent: OnSpent = lambda key_id, at, dollars: None,
        make_queue: Callable[[Callable[[Callable[[], None]], None]], RecordQueue[Callable[[], None]]] = RecordQueue,
    ) -> None:
        self._log = log
        self._models = models
        self._new_id = new_id
        self._simulated = simulated
        self._rewriter = rewriter or RequestRewriter(models)
        self._on_spent = on_spent
        self._warnings = WarningLog("holdfast.gateway")
        self._conversations: ConversationMatcher[_Tracked] = ConversationMatcher()
        self._now = 0.0
        self._is_restored = False
        self._queue = make_queue(self._process)

    @property
    def dropped_count(self) -> int:
        """How many exchanges were dropped because recording could not keep up."""
        return self._queue.dropped_count

    def on_request(self, exchange: Exchange) -> None:
        if exchange.target.adapter_name is not None:
            self._put(functools.partial(self._begin, exchange), exchange)

    def on_end(self, exchange: Exchange) -> None:
        if exchange.target.adapter_name is not None:
            self._put(functools.partial(self._finish, exchange), exchange)

    def on_ping(self, exchange: Exchange, ping: GatewayPing, response: bytes, at: float) -> None:
        """A keep-alive ping for this exchange's cache entry was answered."""
        self._put(functools.partial(self._record_ping, exchange, ping, response, at), exchange)

    def close(self) -> None:
        self._queue.close()

    def _put(self, work: Callable[[], None], exchange: Exchange) -> None:
        if not self._queue.put(work, exchange.buffered_bytes):
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
        for conversation in restore_conversations(self._log):
            observer = RequestObserver(self._recorder(SessionStarted, conversation.resumed), self._warnings)
            self._conversations.restore(
                conversation.request, _Tracked(observer, CounterfactualPricer()), conversation.reply_id
            )

    def _begin(self, exchange: Exchange) -> None:
        body, adapter_name, original = exchange.request_body, exchange.target.adapter_name, exchange.original_body
        if body is None or adapter_name is None:
            return
        exchange.free_request()
        self._now = exchange.started_at
        adapter = get_adapter(adapter_name)
        decoded = decompress_body(body, _header_text(exchange.headers, b"content-encoding"))
        wire = adapter.decode_request(decoded, {PATH_HEADER: exchange.target.path})
        description = _describe_request(exchange, wire, decoded)
        match, tracked = self._conversations.match_request(
            description, functools.partial(self._open_conversation, exchange)
        )
        observer, pricer = tracked.observer, tracked.pricer
        prepared = observer.prepare(adapter, wire)
        shared, blocks = (
            observer.recorder.count_shared_blocks(prepared.digests),
            observer.newest_buffer.blocks if observer.newest_buffer else [],
        )
        if exchange.changes:
            changes = (
                add_masked_diffs(exchange.changes, original, decoded) if original is not None else exchange.changes
            )
            priced = price_as_sent(adapter, prepared.row, pricer, (wire, exchange.started_at, prepared.tokens))
        else:
            call_details = (adapter, wire, exchange.started_at, prepared.tokens)
            anti_patterns = self._find_anti_patterns(exchange, decoded, pricer, call_details)
            changes, priced = anti_patterns.changes, anti_patterns.priced
        forwarded = GatewayForwarded(
            reason=match.reason,
            confidence=match.confidence,
            key_id=exchange.caller.key_id,
            user_id=exchange.caller.user_id,
            team_id=exchange.caller.team_id,
            is_improved=bool(exchange.changes),
            changes=changes,
            trace=_trace(exchange.target.mount, description, match),
            shape=encode_shape(blocks[shared:]),
            prompt_price=priced,
        )
        call = observer.recorder.begin_call(prepared, forwarded)
        if call is not None:
            exchange.record = _ActiveCall(
                match.key, adapter, observer.recorder, call, pricer, pricer.priced_count if priced else 0
            )

    def _find_anti_patterns(
        self,
        exchange: Exchange,
        body: bytes,
        pricer: CounterfactualPricer,
        call: tuple[Adapter, WireRequest, float, int],
    ) -> Findings:
        """What `--improve` would have changed; empty while the recorder is behind."""
        if max(self._queue.queue_length, exchange.queue_length) > BUSY_QUEUE_LENGTH:
            return Findings()
        try:
            return find_anti_patterns(self._rewriter, exchange.target, body, pricer=pricer, call=call)
        except Exception:  # noqa: BLE001 - a body we cannot parse has no findings; it is still recorded
            return Findings()

    def _open_conversation(self, exchange: Exchange, parent_conversation: "_Tracked | None") -> "_Tracked":
        session_id = None if parent_conversation is None else parent_conversation.observer.recorder.session_id
        parent = None if session_id is None else ParentSession(session_id, "", session_id, 1)
        make_started = functools.partial(
            SessionStarted, name=exchange.caller.label, parent=parent, simulated=self._simulated
        )
        return _Tracked(RequestObserver(self._recorder(make_started), self._warnings), CounterfactualPricer())

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
        )

    def _finish(self, exchange: Exchange) -> None:
        active = exchange.record
        if not isinstance(active, _ActiveCall):
            return
        self._now = exchange.ended_at
        reply: Reply | None = None
        try:
            reply = self._record_outcome(exchange, active)
        finally:
            exchange.free_response()
            self._conversations.end_request(active.key, reply.id if reply else "")

    def _record_ping(self, exchange: Exchange, ping: GatewayPing, response: bytes, at: float) -> None:
        active = exchange.record
        if isinstance(active, _ActiveCall):
            self._now = at
            usage = active.adapter.decode_reply(response).usage
            cost = active.recorder.record_ping(active.call, usage, ttl=ping.ttl, block=ping.block_index)
            if exchange.caller.key_id is not None:
                self._on_spent(exchange.caller.key_id, at, float(cost))

    def _record_outcome(self, exchange: Exchange, active: _ActiveCall) -> Reply | None:
        recorder, call = active.recorder, active.call
        reply, is_complete, failure = self._decode_response(exchange, active.adapter)
        if reply is not None and is_complete:
            recorder.complete_call(call, reply)
            tokens_sent = reply.response_usage.tokens_sent
            # Calibrates later estimates with the provider's count.
            if tokens_sent and call.prepared.tokens:
                active.pricer.tokens_factor = tokens_sent / call.prepared.tokens
        elif failure is not None:
            # Only the kind and status: the provider's message may quote the prompt.
            message = f"{failure.kind} (HTTP status {failure.status or exchange.status})"
            recorder.fail_call(call, failure.kind, message, reply)
        elif exchange.end == "cancelled":
            recorder.fail_call(call, "cancelled", "the client disconnected before the response ended", reply)
        elif exchange.end == "whole":
            recorder.fail_call(call, "other", "the response could not be decoded", reply)
        else:
            recorder.fail_call(
                call, "network", "the upstream closed the connection before its response was complete", reply
            )
        # A call without usage wrote nothing to a cache (a 429 or 529), so it must not count as a cache write.
        if reply is None or reply.usage == Usage():
            active.pricer.undo_pricing(active.priced_number)
        if exchange.caller.key_id is not None and reply is not None:
            self._on_spent(
                exchange.caller.key_id, call.started_at, float(recorder.cost_of(call, bill_usage(call, reply.usage)))
            )
        return reply

    def _decode_response(self, exchange: Exchange, adapter: Adapter) -> tuple[Reply | None, bool, ProviderError | None]:
        """The reply (partial if truncated), whether it is complete, and the provider's error, if it sent one."""
        body = exchange.response_body
        if body is None or not exchange.status:
            return None, False, None
        try:
            decoded = decompress_body(body, _header_text(exchange.response_headers, b"content-encoding"))
            if exchange.status != 200:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.response_headers}
                return None, False, adapter.decode_error(exchange.status, headers, decoded)
            if _header_text(exchange.response_headers, b"content-type").startswith("text/event-stream"):
                return _decode_stream(adapter, decoded)
            return (adapter.decode_reply(decoded), True, None) if exchange.end == "whole" else (None, False, None)
        except ProviderError:
            self._warnings.warn_once(_UNREADABLE)
            return None, False, None


def _decode_stream(adapter: Adapter, body: bytes) -> tuple[Reply | None, bool, ProviderError | None]:
    reader = adapter.make_stream_decoder()
    try:
        for delta in reader.feed(body):
            if isinstance(delta, ReplyFinished):
                return delta.reply, True, None
    except ProviderError as error:
        return reader.partial(), False, error
    return reader.partial(), False, None


def _header_text(headers: Headers, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), "")


def _describe_request(exchange: Exchange, wire: WireRequest, body: bytes) -> RequestFingerprint:
    hints, mount, caller = decode_session_hints(body, exchange.headers), exchange.target.mount, exchange.caller
    if hints.session is not None:
        hints = msgspec.structs.replace(hints, session=_short_digest(hints.session.encode("utf-8", "surrogatepass")))
    scope = f"{mount} {caller.account}"
    return RequestFingerprint(
        scope, _head_digest(wire), _block_digests(wire), hints, make_restored_scope(mount, caller.key_id)
    )


def _trace(mount: str, description: RequestFingerprint, match: ConversationMatch) -> ConversationTrace:
    return ConversationTrace(
        mount,
        description.head,
        match.shared_blocks,
        description.blocks[match.shared_blocks :],
        description.hints.session,
        description.hints.source,
    )


def _short_digest(data: bytes) -> str:
    return sha256_hex(data)[:DIGEST_CHARS]


def _head_digest(wire: WireRequest) -> str:
    """Digest over what is stable even in a badly ordered prompt: model, tool names, start of the system text."""
    tools = sorted(tool.name for tool in wire.prompt.tools)
    texts = (text.text for segment in wire.prompt.segments for text in segment.system)
    return _short_digest(msgspec.json.encode((wire.parameters.model, tools, next(texts, "")[:HEAD_CHARS])))


def _block_digests(wire: WireRequest) -> tuple[str, ...]:
    entries = wire.prompt.entries
    return tuple(
        _short_digest(msgspec.json.encode((entry.role, block))) for entry in entries for block in entry.content
    )
