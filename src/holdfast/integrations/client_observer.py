"""Plans and records the requests of one wrapped client with the gateway's planner and recorder, in process.

No failure of ours reaches the caller: a request that cannot be planned is sent as the SDK built it, with one warning.
"""

import hashlib
import re
import secrets
import sys
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import groupby
from typing import Any

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none
from holdfast.catalog.schema import Model
from holdfast.clock import Clock
from holdfast.engine.cache.message_tree import PlannedConversation
from holdfast.engine.cache.single_flight import FlightKey, SingleFlight, Slot
from holdfast.engine.guard import WarningLog
from holdfast.errors import UserError
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.cache import CacheControls, CacheControlsApplied
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.auth import may_rewrite
from holdfast.gateway.exchange import Exchange, ExchangeEnd, GatewayCaller, make_learner
from holdfast.gateway.http.headers import CREDENTIAL_HEADERS
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.explicit_caches import (
    REFUSED_STATUSES,
    CacheUse,
    ExplicitCaches,
    find_query_key,
    identify_credential,
)
from holdfast.gateway.rewrite.operations import IMPLICIT_CACHE_MISSED
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.routes import RouteTable, Target, UpstreamSettings, resolve_upstreams
from holdfast.integrations.keep_alive import ClientKeepAlive, ObservedConversation, SendRequest, replace_content
from holdfast.ledger.accounting import CallRecord
from holdfast.ledger.calls import Bill, compute_bill, iter_calls
from holdfast.providers.gemini import gemini
from holdfast.types.usage import Usage

SESSIONS_MAX = 10_000
RECORDED_SECONDS_MAX = 10.0
_UNOBSERVED = "a call is sent unchanged and is not recorded"
_UNPLANNED = "a call is sent unchanged, without cache breakpoints"
_NOT_RECORDED = "a call is not recorded"

# The last event of a stream by Anthropic, or of chat completions. Clients stop there, and may leave the rest unread.
_LAST_EVENT = re.compile(rb"^(?:event: ?message_stop\r?\ndata:[^\n]*|data: ?\[DONE\])\r?\n\r?\n", re.MULTILINE)

_LAST_EVENT_BYTES_MAX = 500

_LOST_RESPONSES = frozenset({"ReadError", "ReadTimeout", "RemoteProtocolError"})
"""Errors of httpx and its forks that come while a response is awaited: the provider has the request, and may charge."""


INCLUDE_USAGE = "include_usage"
EVENT_BYTES_MAX = 1024 * 1024
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_Members = dict[str, msgspec.Raw]

_PROVIDERS = RouteTable(resolve_upstreams({}, {}))


class ClientRecorder:
    """The record of a wrapped client's calls, over all its conversations; each is a session in the log.

    Calls before `since` are not this client's: a conversation may continue one that an earlier process recorded.
    """

    def __init__(
        self, log: EventLog, models: Models, recorder: GatewayRecorder, *, sessions: dict[str, None], since: float
    ) -> None:
        self.log = log
        """The event log, which has the events of each of `session_ids`."""
        self._since = since
        self._models = models
        self._recorder = recorder
        self._sessions = sessions

    @property
    def session_ids(self) -> tuple[str, ...]:
        """The conversations of this client, oldest first; waits until the calls that have ended are recorded."""
        self.wait_until_recorded()
        return tuple(self._sessions)

    def wait_until_recorded(self) -> None:
        """Returns once the calls that have ended are on the log."""
        self._recorder.queue.wait_until_empty(RECORDED_SECONDS_MAX)
        # A store writes in order: once nothing is written, so is everything before it.
        self.log.append(()).exception(RECORDED_SECONDS_MAX)

    def read_events(self) -> Iterator[Event]:
        """The events of all conversations, one conversation after the other."""
        events = (event for session_id in self.session_ids for event in self.log.read(session_id))
        return (event for event in events if event.at >= self._since)

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The completed calls, oldest first; `number` counts within a conversation."""
        calls = [call for session_id in self.session_ids for call in iter_calls(self.log.read(session_id))]
        return tuple(sorted((call for call in calls if call.at >= self._since), key=lambda call: call.at))

    def bill(self) -> Bill:
        """Usage and cost of all calls; those of models without a price are counted as unpriced."""
        total = Bill(0, Usage(), Decimal(0), Decimal(0))
        for model, records in groupby(self.calls, key=lambda record: record.model):
            part = self._bill_of(model, records)
            costs = (total.cost_usd + part.cost_usd, total.uncached_cost_usd + part.uncached_cost_usd)
            unpriced = total.unpriced_calls + part.unpriced_calls
            total = Bill(total.calls + part.calls, total.usage + part.usage, *costs, unpriced_calls=unpriced)
        return total

    def _bill_of(self, model: str, records: Iterator[CallRecord]) -> Bill:
        row = find_model_or_none(model, self._models)
        if row is not None and row.prices:
            return compute_bill(records, row)
        usages = [record.usage for record in records]
        return Bill(len(usages), sum(usages, Usage()), Decimal(0), Decimal(0), unpriced_calls=len(usages))


class ClientObserver:
    """Thread-safe. `mount` names the upstream of hosts that are not a known provider's own; if empty, the path does."""

    def __init__(
        self,
        recorder: ClientRecorder,
        watcher: GatewayRecorder,
        rewriter: ConversationRewriter,
        *,
        mount: str,
        clock: Clock,
        warnings: WarningLog,
        controls: Callable[[str], CacheControls] | None = None,
        keep_alive: ClientKeepAlive | None = None,
        explicit_caches: ExplicitCaches | None = None,
    ) -> None:
        self.recorder = recorder
        self.explicit_caches = explicit_caches
        self.keep_alive = keep_alive
        self.watcher = watcher
        self.rewriter = rewriter
        self.clock = clock
        self.warnings = warnings
        self.single_flight = SingleFlight()
        self._mount = mount
        self._controls = controls
        self._salt = secrets.token_bytes(32)
        self._routes: dict[tuple[str, str, bytes], RouteTable] = {}
        self.open_calls: weakref.WeakSet[ObservedCall] = weakref.WeakSet()
        self._controlled = weakref.WeakKeyDictionary[PlannedConversation, tuple[Exchange, bool]]()

    def begin_call(self, request: Any) -> "ObservedCall | None":
        """The call of an `httpx` request, with the request to send; None if it calls no model. Never raises."""
        with self.warnings.suppress_errors(_UNOBSERVED):
            target = self._find_target(request.url)
            if target is None:
                return None
            # aiohttp, which google-genai would use without us, sends one of several values.
            if len(agents := request.headers.get_list("user-agent")) > 1:
                request.headers["user-agent"] = agents[-1]
            headers = [(name.lower(), value) for name, value in request.headers.raw]
            caller = GatewayCaller(self._account(headers))
            exchange = Exchange(target, headers, caller, self.clock(), method=request.method)
            if (target.adapter_name is None or request.method != "POST") and not exchange.reads_batch_results:
                return None
            call = ObservedCall(self, exchange, request)
            if request.method == "POST":
                self._plan(call, request.content, is_rewritable=may_rewrite(target, headers))
            self.open_calls.add(call)
            return call
        return None

    def _plan(self, call: "ObservedCall", body: bytes, *, is_rewritable: bool) -> None:
        exchange = call.exchange
        exchange.add_request_bytes(body)
        analysis = self._analyze(exchange, body) if is_rewritable else None
        if analysis is None or not analysis.row.prices:
            # The catalog does not know the model.
            return
        is_enabled = self._is_caching_enabled(exchange, analysis)
        self._begin_cache_use(call, analysis, body, is_enabled=is_enabled)
        if not is_enabled:
            self.rewriter.record_response(analysis.call, None)
            return
        call.analysis, exchange.is_planned = analysis, True
        rewritten = analysis.body
        with_usage = request_usage(exchange.target, rewritten or body, analysis.row)
        if with_usage is not None:
            rewritten, call.usage_filter = with_usage, UsageEventFilter()
        if rewritten is not None:
            call.replace_body(rewritten)
            exchange.restore_request(rewritten, len(rewritten))
            exchange.changes, exchange.original_body = analysis.changes, body if analysis.changes else None

    def _begin_cache_use(
        self, call: "ObservedCall", analysis: RequestAnalysis, body: bytes, *, is_enabled: bool
    ) -> None:
        if self.explicit_caches is None or analysis.adapter.name != "gemini":
            return
        exchange, url = call.exchange, call.request.url
        headers = [(name.lower(), value) for name, value in call.request.headers.raw]
        with self.warnings.suppress_errors("a call is sent without an explicit cache"):
            call.cache_use = self.explicit_caches.begin(
                analysis,
                (analysis.body if is_enabled else None) or body,
                path=exchange.target.path,
                credential=identify_credential(headers, url.query, url.netloc),
                at=exchange.started_at,
                is_enabled=is_enabled,
            )

    def _analyze(self, exchange: Exchange, body: bytes) -> RequestAnalysis | None:
        target = exchange.target
        try:
            return self.rewriter.analyze(
                target.format,
                body,
                path=target.path,
                account=exchange.caller.account,
                at=exchange.started_at,
                provider=target.provider,
                path_fields=target.path_fields,
                learner=make_learner(target, exchange.caller),
            )
        except UserError:
            # No rewrite is known to help this request. The recorder warns of a model that is not in the catalog.
            return None
        except Exception as error:  # noqa: BLE001 - the caller's call must not break, whatever this was
            # Only the type of the error: its message could quote the prompt.
            self.warnings.warn_once(f"{_UNPLANNED}: {type(error).__name__}")
            return None

    def _is_caching_enabled(self, exchange: Exchange, analysis: RequestAnalysis) -> bool:
        """Whether caching is turned on in the store, for the provider and for the conversation of this request.

        Only the planner knows conversations before they are recorded.
        """
        if self._controls is None:
            return True
        conversation = analysis.call.conversation
        previous, was_enabled = self._controlled.get(conversation, (None, True))
        is_enabled = was_enabled
        with self.warnings.suppress_errors("the cache controls cannot be read"):
            controls = self._controls(previous.session_id if previous else "")
            providers = controls.settings.providers
            is_enabled = controls.session.caching_enabled and providers.get(analysis.adapter.name, True)
        if is_enabled != was_enabled:
            reason = "" if is_enabled else "caching was turned off"
            exchange.control_changes = (CacheControlsApplied(caching_enabled=is_enabled, reason=reason),)
        self._controlled[conversation] = exchange, is_enabled
        return is_enabled

    def _find_target(self, url: Any) -> Target | None:
        path = url.raw_path.partition(b"?")[0].decode("latin-1")
        known = (name for name, upstream in _PROVIDERS.upstreams.items() if upstream.host == url.host)
        mount = next(known, self._mount or _PROVIDERS.find_mount(path))
        if mount is None:
            return None
        key = (mount, url.scheme, url.netloc)
        if key not in self._routes:
            settings = UpstreamSettings(url=f"{url.scheme}://{url.netloc.decode()}")
            self._routes[key] = RouteTable({mount: resolve_upstreams({mount: settings}, {})[mount]})
        return self._routes[key].find_target(f"/{mount}{path}")

    def _account(self, headers: list[tuple[bytes, bytes]]) -> str:
        credential = b"\n".join(value for name, value in headers if name in CREDENTIAL_HEADERS)
        return hashlib.blake2b(credential, key=self._salt, digest_size=8).hexdigest()


class ObservedCall:
    """One request and its response. `request` is the one to send; no method raises but the caller's own errors."""

    def __init__(self, observer: ClientObserver, exchange: Exchange, request: Any) -> None:
        self.exchange = exchange
        self.request = request
        self.analysis: RequestAnalysis | None = None
        self.usage_filter: UsageEventFilter | None = None
        self.send_again: SendRequest | None = None
        self.cache_use: CacheUse | None = None
        self._whole_request: Any = None
        self._observer = observer
        self._is_ended = False
        self._tail = b""
        self._slot: Slot | None = None

    @property
    def _flight_key(self) -> FlightKey | None:
        """None if the request has no prefix to share with others."""
        key = self.analysis.flight_key if self.analysis is not None else None
        return key if key is not None and key.prefixes else None

    def enter_flight(self) -> None:
        """Waits while another request writes the prefix that this one would write too."""
        if self._flight_key is not None:
            self._slot = self._observer.single_flight.enter_blocking(self._flight_key, self._observer.clock)

    async def enter_flight_async(self) -> None:
        if self._flight_key is not None:
            self._slot = await self._observer.single_flight.enter(self._flight_key, self._observer.clock)

    def _leave_flight(self, *, is_written: bool) -> None:
        slot, self._slot = self._slot, None
        if slot is not None and is_written:
            slot.mark_begun()
        if slot is not None:
            self._observer.single_flight.release(slot)

    def replace_body(self, body: bytes) -> None:
        # Events can be taken out of a response only if it is not compressed.
        headers = {} if self.usage_filter is None else {"accept-encoding": "identity"}
        self.request = replace_content(self.request, body, **headers)

    def make_cache_request(self) -> Any:
        """The request about an explicit cache that is to be sent before this one; None if there is none."""
        wanted = self.cache_use.request if self.cache_use is not None else None
        if wanted is None:
            return None
        given = self.request
        prefix = given.url.path.removesuffix(self.exchange.target.path)
        query = find_query_key(given.url.query)
        url = given.url.copy_with(raw_path=(prefix + wanted.endpoint.path).encode() + (b"?" + query if query else b""))
        headers = {**dict(given.headers), "content-length": str(len(wanted.body)), "accept-encoding": "identity"}
        method = wanted.endpoint.method
        return type(given)(method, url, headers=headers, content=wanted.body, extensions=given.extensions)

    def finish_cache_use(self, status: int, answer: bytes) -> None:
        """The request about the cache was answered, or could not be sent (status 0). Refers to the cache."""
        use, caches, exchange = self.cache_use, self._observer.explicit_caches, self.exchange
        with self._observer.warnings.suppress_errors("a call is sent without an explicit cache"):
            if use is None or caches is None:
                return
            if use.request is not None:
                caches.finish(use, status, answer, at=self._observer.clock())
            exchange.opening_changes = use.take_changes()
            referring = use.encode()
            if use.cache is not None and referring is not None:
                exchange.explicit_cache_tokens = use.cache.tokens
                change = RequestChange(IMPLICIT_CACHE_MISSED, use.cache.name, is_applied=True)
                exchange.changes = (*exchange.changes, change)
                self._whole_request, self.request = self.request, replace_content(self.request, referring)

    def is_withheld(self, response: Any) -> bool:
        """Whether the provider refused the request because of its explicit cache, so that it is sent without."""
        return self._whole_request is not None and response.status_code in REFUSED_STATUSES

    def lose_cache(self, response: Any) -> None:
        """The response was withheld; `request` is now the one without the cache."""
        use, caches = self.cache_use, self._observer.explicit_caches
        self.request, self._whole_request = self._whole_request, None
        with self._observer.warnings.suppress_errors(_NOT_RECORDED):
            if use is not None and caches is not None:
                error = gemini.decode_error(response.status_code, {}, response.content)
                caches.lose(use, error, at=self._observer.clock())
                self.exchange.closing_changes = use.take_changes()

    @contextmanager
    def sending(self) -> Iterator[None]:
        with self._observer.warnings.suppress_errors(_NOT_RECORDED):
            self._observer.watcher.on_request(self.exchange)
        try:
            yield
        except BaseException as error:
            self.end(_find_end(error))
            raise

    def begin_response(self, response: Any) -> bool:
        """Whether the body of the response is still to be read."""
        exchange = self.exchange
        exchange.status = response.status_code
        # From now on others can read what this request wrote.
        self._leave_flight(is_written=exchange.status == 200)
        if self.cache_use is not None and self._observer.explicit_caches is not None and exchange.status == 200:
            self._observer.explicit_caches.distrust(self.cache_use, at=self._observer.clock())
            exchange.closing_changes += self.cache_use.take_changes()
        exchange.response_headers = [(name.lower(), value) for name, value in response.headers.raw]
        encoding = response.headers.get("content-encoding", "identity")
        if exchange.status != 200 or encoding != "identity":
            self.usage_filter = None
        if not response.is_stream_consumed:
            return True
        # A hook of the caller has read it: the content is decompressed.
        dropped = (b"content-encoding", b"content-length")
        exchange.response_headers = [pair for pair in exchange.response_headers if pair[0] not in dropped]
        exchange.add_response_bytes(response.content)
        self.end("whole")
        return False

    @contextmanager
    def reading(self) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            # The caller stops reading; `close` or `drop` follows.
            raise
        except BaseException as error:
            self.end("cancelled" if isinstance(error, CancelledError | KeyboardInterrupt) else "cut")
            raise
        self.end("whole")

    def pass_chunk(self, chunk: bytes) -> tuple[bytes, ...]:
        """Copy a chunk for the record; returns what the caller gets of it."""
        if not self._is_ended:
            self.exchange.add_response_bytes(chunk)
        self._tail = (self._tail + chunk)[-_LAST_EVENT_BYTES_MAX:]
        if _LAST_EVENT.search(self._tail):
            self.end("whole")
        return (chunk,) if self.usage_filter is None else self.usage_filter.feed(chunk)

    def pass_rest(self) -> tuple[bytes, ...]:
        return () if self.usage_filter is None else self.usage_filter.flush()

    def end(self, end: ExchangeEnd) -> None:
        """The response has ended; only the first of several signs counts."""
        if self._is_ended:
            return
        self._is_ended = True
        self._leave_flight(is_written=False)
        exchange, observer = self.exchange, self._observer
        exchange.end = end
        exchange.ended_at = observer.clock()
        with observer.warnings.suppress_errors(_NOT_RECORDED):
            if self.analysis is not None:
                response = exchange.decode_response() if exchange.is_successful else None
                observer.rewriter.record_response(self.analysis.call, response)
            self._watch()
        with observer.warnings.suppress_errors(_NOT_RECORDED):
            observer.watcher.on_end(exchange)

    def _watch(self) -> None:
        keep_alive, analysis, send = self._observer.keep_alive, self.analysis, self.send_again
        if keep_alive is None or analysis is None or send is None or not self.exchange.is_successful:
            return
        received = self.request.content
        keep_alive.watch(ObservedConversation(analysis, self.exchange, received, request=self.request, send=send))

    def drop(self) -> None:
        """The response was collected as garbage.

        This runs in a finalizer, maybe inside the planner, whose lock it must not take: the call is only queued.
        """
        if not self._is_ended and not sys.is_finalizing():
            self._is_ended = True
            self.exchange.end = "cancelled"
            self.exchange.ended_at = self._observer.clock()
            with self._observer.warnings.suppress_errors(_NOT_RECORDED):
                self._observer.watcher.on_end(self.exchange)


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw] | None = None
    usage: dict[str, msgspec.Raw] | None = None


def request_usage(target: Target, body: bytes, row: Model) -> bytes | None:
    """The body with `include_usage`; None if it is no chat stream, if the caller has set it, or at other hosts."""
    if target.adapter_name != "openai-chat" or target.provider not in ("openai", "openai-chat") or not row.prices:
        return None
    members = msgspec.json.decode(body, type=_Members)
    if bytes(members.get("stream", msgspec.Raw(b"false"))) != b"true":
        return None
    given = members.get("stream_options")
    options = msgspec.json.decode(given, type=_Members | None) if given is not None else None
    if options is not None and options.get(INCLUDE_USAGE) is not None:
        return None
    members["stream_options"] = msgspec.Raw(
        msgspec.json.encode({**(options or {}), INCLUDE_USAGE: msgspec.Raw(b"true")})
    )
    return msgspec.json.encode(members)


class UsageEventFilter:
    """Passes events on as soon as they are complete, but for the one that exists only because we asked for usage."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> tuple[bytes, ...]:
        data = self._rest + chunk
        passed: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(data):
            event = data[start : end.end()]
            if not _has_only_usage(event):
                passed.append(event)
            start = end.end()
        self._rest = data[start:]
        if len(self._rest) > EVENT_BYTES_MAX:
            passed.append(self._rest)
            self._rest = b""
        return (b"".join(passed),) if passed else ()

    def flush(self) -> tuple[bytes, ...]:
        rest, self._rest = self._rest, b""
        return (rest,) if rest else ()


def _has_only_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    try:
        chunk = msgspec.json.decode(event.strip().removeprefix(b"data:"), type=_Chunk)
    except msgspec.MsgspecError:
        return False
    return chunk.choices == [] and chunk.usage is not None


def _find_end(error: BaseException) -> ExchangeEnd:
    """How a request ended that got no response."""
    if isinstance(error, CancelledError | KeyboardInterrupt | GeneratorExit):
        return "cancelled"
    return "cut" if any(cls.__name__ in _LOST_RESPONSES for cls in type(error).__mro__) else "unreachable"
