"""Records forwarded exchanges as sessions in the log: calls, usage, cost and cache verdicts."""

import functools
from collections.abc import Callable, Iterator

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.clock import NewId
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedCall, ObservedRequest, ResumedSession, bill_usage
from holdfast.engine.request_observer import RequestObserver
from holdfast.errors import ProviderError
from holdfast.events.log import EventLog
from holdfast.events.payloads.calls import ConversationTrace, GatewayForwarded
from holdfast.events.payloads.session import ParentSession, SessionStarted
from holdfast.gateway.exchange import BUFFERED_BYTES_MAX, Exchange
from holdfast.gateway.http.content_encoding import decompress_body
from holdfast.gateway.http.response_parser import Headers
from holdfast.gateway.recording.conversation_match import (
    ConversationMatch,
    ConversationMatcher,
    ReplyFingerprint,
    RequestFingerprint,
    decode_session_hints,
    find_session_hints,
)
from holdfast.gateway.recording.counterfactual import CounterfactualPricer, encode_shape
from holdfast.gateway.recording.restore import make_restored_scope, restore_conversations
from holdfast.gateway.recording.worker_process import UNPRICED_USD_PER_MTOK, RecordQueue
from holdfast.gateway.rewrite.findings import Findings, add_masked_diffs, find_anti_patterns, price_as_sent
from holdfast.gateway.rewrite.rewriter import BYTES_PER_TOKEN, GatewayPing, RequestRewriter
from holdfast.providers.adapter import PATH_HEADER, Adapter, WireRequest
from holdfast.providers.json_splice import UNREADABLE, decode_json_or_none, decode_or_none
from holdfast.providers.registry import get_adapter
from holdfast.providers.tolerant_decode import (
    FIELD_CHARS_MAX,
    UNKNOWN_MODEL,
    TolerantRequest,
    decode_request_tolerantly,
    find_usage,
    wrap_raw_request,
)
from holdfast.types.blocks import Block, Role, Text, is_thinking, parse_tool_call
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import Plan
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.usage import Usage

_NOT_RECORDED = "a call was not recorded"

# Only the start of the system text: volatile lines usually come later.
HEAD_CHARS = 40
DIGEST_CHARS = 16

# Shorter texts in a tool call, such as paths and commands, may be the first message of an unrelated conversation.
DELEGATED_CHARS_MIN = 24
DELEGATED_TEXTS_PER_REPLY_MAX = 32
ENDPOINT_SESSIONS_MAX = 1_000
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
    """`key` is that of the conversation; None for a call that belongs to none, such as embeddings."""

    key: int | None
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
        unpriced_usd_per_mtok: float = UNPRICED_USD_PER_MTOK,
        make_queue: Callable[[Callable[[Callable[[], None]], None]], RecordQueue[Callable[[], None]]] = RecordQueue,
    ) -> None:
        self._log = log
        self._models = models
        self._new_id = new_id
        self._simulated = simulated
        self._rewriter = rewriter or RequestRewriter(models)
        self._on_spent = on_spent
        self._unpriced_usd_per_mtok = unpriced_usd_per_mtok
        self._warnings = WarningLog("holdfast.gateway")
        self._conversations: ConversationMatcher[_Tracked] = ConversationMatcher()
        self._endpoint_sessions: dict[tuple[str, str, str], _Tracked] = {}
        self._now = 0.0
        self._is_restored = False
        self._queue = make_queue(self._process)

    @property
    def dropped_count(self) -> int:
        """How many exchanges were dropped because recording could not keep up."""
        return self._queue.dropped_count

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
        self._now = exchange.started_at
        if exchange.target.adapter_name is None:
            self._begin_other(exchange)
            return
        adapter = get_adapter(exchange.target.adapter_name)
        body, request = _decode_request(adapter, exchange)
        original = exchange.original_body
        exchange.free_request()
        description = _describe_request(exchange, request.wire, body)
        match, tracked = self._conversations.match_request(
            description, functools.partial(self._open_conversation, exchange)
        )
        observer, pricer = tracked.observer, tracked.pricer
        request, prepared = observer.prepare_unchanged(adapter, request, body, _path_header(exchange))
        wire = request.wire
        shared, blocks = (
            observer.recorder.count_shared_blocks(prepared.digests),
            observer.newest_buffer.blocks if observer.newest_buffer else [],
        )
        if exchange.changes:
            changes = add_masked_diffs(exchange.changes, original, body) if original is not None else exchange.changes
            priced = price_as_sent(adapter, prepared.row, pricer, (wire, exchange.started_at, prepared.tokens))
        elif request.unreadable:
            # A rewrite would not touch a request that it cannot read.
            changes, priced = (), None
        else:
            call_details = (adapter, wire, exchange.started_at, prepared.tokens)
            anti_patterns = self._find_anti_patterns(exchange, body, pricer, call_details)
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
            unreadable=request.unreadable or msgspec.UNSET,
        )
        call = observer.recorder.begin_call(prepared, forwarded)
        if call is not None:
            exchange.record = _ActiveCall(
                match.key, adapter, observer.recorder, call, pricer, pricer.priced_count if priced else 0
            )

    def _begin_other(self, exchange: Exchange) -> None:
        """A request that calls no model directly, such as embeddings: one session for each endpoint and caller."""
        target, caller = exchange.target, exchange.caller
        key = (target.mount, target.endpoint, caller.account)
        if key not in self._endpoint_sessions:
            name = f"{target.mount} {target.endpoint}"
            self._endpoint_sessions[key] = self._open_conversation(exchange, None, name=name)
            while len(self._endpoint_sessions) > ENDPOINT_SESSIONS_MAX:
                del self._endpoint_sessions[next(iter(self._endpoint_sessions))]
        tracked = self._endpoint_sessions[key]
        body = decode_or_none(msgspec.json.decode, _decompress_or_none(exchange))
        exchange.free_request()
        named = body.get("model") if isinstance(body, dict) else None
        model = f"{target.mount}:{named if isinstance(named, str) else UNKNOWN_MODEL}"
        recorder = tracked.observer.recorder
        # No content: it is no prompt, and nothing of it is cached.
        prepared = ObservedRequest(
            model=model,
            provider=target.mount,
            row=recorder.find_catalog_row(model),
            plan=Plan(),
            digests=(),
            parameters_digest="",
            body_bytes=exchange.request_bytes,
            tokens=0,
        )
        forwarded = GatewayForwarded(
            reason=f"a call of {target.endpoint}",
            confidence=1.0,
            key_id=caller.key_id,
            user_id=caller.user_id,
            team_id=caller.team_id,
        )
        call = recorder.begin_call(prepared, forwarded)
        if call is not None:
            exchange.record = _ActiveCall(None, get_adapter(target.mount), recorder, call, tracked.pricer, 0)

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

    def _open_conversation(
        self, exchange: Exchange, parent_conversation: "_Tracked | None", *, name: str | None = None
    ) -> "_Tracked":
        session_id = None if parent_conversation is None else parent_conversation.observer.recorder.session_id
        parent = None if session_id is None else ParentSession(session_id, "", session_id, 1)
        make_started = functools.partial(
            SessionStarted, name=exchange.caller.label or name, parent=parent, simulated=self._simulated
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
            if active.key is not None:
                self._conversations.end_request(active.key, _describe_reply(reply) if reply else None)

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
        response = self._decode_response(exchange, active.adapter)
        reply, failure = response.reply, response.failure
        usage = bill_usage(call, reply.usage) if reply is not None else Usage()
        if reply is not None and response.is_complete:
            recorder.complete_call(call, reply, unreadable=response.unreadable)
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
            usage = bill_usage(call, self._estimate_usage(exchange, call))
            message = response.unreadable or "the response has no usage"
            recorder.fail_call(call, "unreadable", message, estimated_usage=usage)
        else:
            recorder.fail_call(
                call, "network", "the upstream closed the connection before its response was complete", reply
            )
        # A call without usage wrote nothing to a cache (a 429 or 529), so it must not count as a cache write.
        if usage == Usage():
            active.pricer.undo_pricing(active.priced_number)
        elif exchange.caller.key_id is not None:
            self._on_spent(exchange.caller.key_id, call.started_at, self._spent_usd(active, usage))
        return reply

    def _estimate_usage(self, exchange: Exchange, call: ObservedCall) -> Usage:
        """Usage by size, for a response that cannot be decoded: nothing read from the cache, one token per 4 bytes."""
        return Usage(
            input=call.prepared.tokens or exchange.request_bytes // BYTES_PER_TOKEN,
            output=exchange.response_bytes // BYTES_PER_TOKEN,
        )

    def _spent_usd(self, active: _ActiveCall, usage: Usage) -> float:
        """What a call counts against a budget; one whose model has no price is estimated, never free."""
        row = active.call.prepared.row
        if row is not None and row.prices:
            return float(active.recorder.cost_of(active.call, usage))
        return (usage.tokens_sent + usage.output) * self._unpriced_usd_per_mtok / 1_000_000

    def _decode_response(self, exchange: Exchange, adapter: Adapter) -> "_DecodedResponse":
        body = exchange.response_body
        if not exchange.status:
            return _DecodedResponse()
        if body is None:
            return _DecodedResponse(unreadable=f"the response has more than {BUFFERED_BYTES_MAX} bytes")
        try:
            decoded = decompress_body(body, _header_text(exchange.response_headers, b"content-encoding"))
        except ProviderError as error:
            self._warnings.warn_once(_UNREADABLE)
            return _DecodedResponse(unreadable=str(error))
        try:
            if exchange.status != 200:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.response_headers}
                return _DecodedResponse(failure=adapter.decode_error(exchange.status, headers, decoded))
            if _header_text(exchange.response_headers, b"content-type").startswith("text/event-stream"):
                return _decode_stream(adapter, decoded, is_whole=exchange.end == "whole")
            if exchange.end != "whole":
                return _DecodedResponse()
            if exchange.target.adapter_name is None:
                # Without usage it cost nothing that could be known, such as a file or a token count.
                return _DecodedResponse(Reply((), "end_turn", find_usage(decoded) or Usage()), is_complete=True)
            return _DecodedResponse(adapter.decode_reply(decoded), is_complete=True)
        except ProviderError as error:
            return _read_usage_only(decoded, str(error), is_complete=exchange.end == "whole")


class _DecodedResponse(msgspec.Struct, frozen=True):
    """`reply` is partial if the response was truncated; `failure` is an error that the provider sent.

    `unreadable` names what could not be decoded, with the reason; the usage may be known all the same.
    """

    reply: Reply | None = None
    is_complete: bool = False
    failure: ProviderError | None = None
    unreadable: str = ""


def _decode_stream(adapter: Adapter, body: bytes, *, is_whole: bool) -> _DecodedResponse:
    reader = adapter.make_stream_decoder()
    try:
        for delta in reader.feed(body):
            if isinstance(delta, ReplyFinished):
                return _DecodedResponse(delta.reply, is_complete=True)
    except ProviderError as error:
        # An error event of the provider names no field; an event that cannot be decoded does.
        if error.field:
            return _read_usage_only(body, str(error), is_complete=is_whole)
        return _DecodedResponse(reader.partial(), failure=error)
    if is_whole:
        return _read_usage_only(body, "the stream ended without its last event", reader.partial(), is_complete=False)
    return _DecodedResponse(reader.partial())


def _read_usage_only(body: bytes, reason: str, partial: Reply | None = None, *, is_complete: bool) -> _DecodedResponse:
    """The usage of a response whose content cannot be decoded; the content is recorded as empty."""
    usage = find_usage(body)
    reason = reason[:FIELD_CHARS_MAX]
    if usage is None or usage == Usage():
        return _DecodedResponse(partial, unreadable=reason)
    reply = partial or Reply((), "error", usage)
    return _DecodedResponse(reply, is_complete=is_complete, unreadable=reason)


def _decode_request(adapter: Adapter, exchange: Exchange) -> tuple[bytes, TolerantRequest]:
    """The request's JSON and its decoded form; never raises. A body too large to buffer counts as empty."""
    body, headers = exchange.request_body, _path_header(exchange)
    if body is None:
        reason = f"the request has {exchange.request_bytes} bytes; at most {BUFFERED_BYTES_MAX} are decoded"
        return b"", wrap_raw_request(b"", headers, reason)
    try:
        decoded = decompress_body(body, _header_text(exchange.headers, b"content-encoding"))
    except ProviderError as error:
        return body, wrap_raw_request(body, headers, str(error))
    return decoded, decode_request_tolerantly(adapter, decoded, headers)


def _decompress_or_none(exchange: Exchange) -> bytes | None:
    try:
        return decompress_body(exchange.request_body or b"", _header_text(exchange.headers, b"content-encoding"))
    except ProviderError:
        return None


def _path_header(exchange: Exchange) -> dict[str, str]:
    return {PATH_HEADER: exchange.target.path}


def _header_text(headers: Headers, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), "")


def _describe_request(exchange: Exchange, wire: WireRequest, body: bytes) -> RequestFingerprint:
    try:
        hints = decode_session_hints(body, exchange.headers)
    except UNREADABLE:
        hints = find_session_hints({}, exchange.headers)
    mount, caller = exchange.target.mount, exchange.caller
    if hints.session is not None:
        hints = msgspec.structs.replace(hints, session=_short_digest(hints.session.encode("utf-8", "surrogatepass")))
    scope = f"{mount} {caller.account}"
    return RequestFingerprint(
        scope,
        _head_digest(wire),
        _block_digests(wire),
        hints,
        make_restored_scope(mount, caller.key_id),
        _opening_digests(wire),
    )


def _describe_reply(reply: Reply) -> ReplyFingerprint:
    blocks = (_digest_block("assistant", block) for block in reply.content if not is_thinking(block))
    calls = (call for block in reply.content if (call := parse_tool_call(block)) is not None)
    delegated = tuple(_digest_text(text) for call in calls for text in _iter_long_texts(call.arguments_json))
    return ReplyFingerprint(reply.id, frozenset(blocks), delegated[:DELEGATED_TEXTS_PER_REPLY_MAX])


def _iter_long_texts(arguments_json: str) -> Iterator[str]:
    """All texts in the arguments of a call that are long enough to identify the conversation they were passed to."""
    values: list[object] = [decode_json_or_none(arguments_json)]
    while values:
        match values.pop():
            case str(text) if len(text) >= DELEGATED_CHARS_MIN:
                yield text
            case list(items):
                values += items
            case dict(members):
                values += members.values()
            case _:
                pass


def _opening_digests(wire: WireRequest) -> tuple[str, ...]:
    entries = wire.prompt.entries
    texts = (block.text for block in entries[0].content if isinstance(block, Text)) if entries else ()
    return tuple(_digest_text(text) for text in texts if len(text) >= DELEGATED_CHARS_MIN)


def _digest_text(text: str) -> str:
    return _short_digest(text.strip().encode("utf-8", "surrogatepass"))


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
    return tuple(_digest_block(entry.role, block) for entry in entries for block in entry.content)


def _digest_block(role: Role, block: Block) -> str:
    return _short_digest(msgspec.json.encode((role, block)))
