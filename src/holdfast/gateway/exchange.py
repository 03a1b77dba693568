"""One request through the gateway: prepared (rewritten or unchanged), then buffered with its response for recording."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Literal, Protocol

import msgspec

from holdfast.clock import new_ulid
from holdfast.errors import FailureKind, ProviderError
from holdfast.events.payloads.cache import CacheControlsApplied, ExplicitCacheChanged
from holdfast.events.payloads.calls import GatewayForwarded, RequestChange
from holdfast.gateway.http.content_encoding import decompress_body
from holdfast.gateway.http.headers import CREDENTIAL_HEADERS, OWN_HEADER_PREFIX, Headers, get_header_value
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.explicit_caches import CacheUse
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.routes import Target
from holdfast.planning.learned import Learner
from holdfast.providers.json_splice import has_too_many_values
from holdfast.providers.registry import get_adapter
from holdfast.types.json_encoding import sha256_hex

UNPRICED_USD_PER_MTOK = 10.0
"""What a budget is charged per million tokens of a call without a known price: above most models' input price, so
that a model that the catalog does not know cannot be used to get around a budget."""

# Of larger bodies only the size is recorded.
BUFFERED_BYTES_MAX = 32 * 1024 * 1024
ExchangeEnd = Literal["whole", "cut", "cancelled", "unreachable", "stopped"]
INTERRUPTIONS: Mapping[str, tuple[FailureKind, str]] = {
    "cancelled": ("cancelled", "the client disconnected before the response ended"),
    "unreachable": ("network", "the upstream could not be reached"),
    "stopped": ("cancelled", "the gateway was stopped before the response ended"),
    "cut": ("network", "the upstream closed the connection before its response was complete"),
}
"""How an exchange that did not end with a whole response is recorded."""

_KINDS: Mapping[int, FailureKind] = {
    **dict.fromkeys((400, 408, 413, 421), "invalid_request"),
    401: "auth",
    403: "auth",
    429: "rate_limit",
}
logger = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class GatewayCaller(msgspec.Struct, frozen=True):
    """Who sent the request, without any credential.

    `account` is equal for requests that share a provider's caches. `key_id`, `label`, `user_id` and `team_id`
    describe the gateway key, if one was used; `has_budget` whether its spending or its models are limited.
    """

    account: str
    key_id: str | None = None
    label: str | None = None
    user_id: str | None = None
    team_id: str | None = None
    has_budget: bool = False

    def describe_call(self, reason: str, unreadable: tuple[str, ...] = ()) -> GatewayForwarded:
        """Of a call that belongs to no conversation."""
        return GatewayForwarded(
            reason=reason,
            confidence=1.0,
            key_id=self.key_id,
            user_id=self.user_id,
            team_id=self.team_id,
            unreadable=unreadable or msgspec.UNSET,
        )


def make_learner(target: Target, caller: GatewayCaller) -> Learner:
    """Whose idle times a call adds to: those of its gateway key, or of all calls without one."""
    return Learner(target.route, sha256_hex(caller.key_id.encode()) if caller.key_id else None)


class CallCharge(msgspec.Struct, frozen=True):
    """What a call of a gateway key with a budget counts against it; 0 dollars for one that cost nothing.

    `id` is that of the exchange. Pings and batch results, which have no exchange of their own, have an id that is the
    same whenever they are recorded again.
    """

    id: str
    key_id: str
    at: float
    dollars: float
    output_tokens: int = 0


class WebSocketCall(msgspec.Struct, frozen=True):
    """A request that came as a message on a WebSocket: the response it continues, and whether it asks for no output.

    If `is_prompt_known`, the request body has the whole prompt, else only what followed that response.
    """

    previous_response_id: str = ""
    is_prompt_known: bool = True
    is_warm_up: bool = False


class GatewayRefusedError(Exception):
    """The gateway refuses a request; the client gets it in the provider's error format."""

    def __init__(self, status: int, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    def encode(self, target: Target) -> tuple[int, bytes]:
        """Status and body as the provider would answer."""
        kind = _KINDS.get(self.status, "server_error")
        return get_adapter(target.format).encode_error(kind, self.message, status=self.status)


class AuthenticatedRequest(msgspec.Struct, frozen=True):
    """An authenticated request: its caller, and the headers to forward."""

    caller: GatewayCaller
    headers: Headers
    improve: bool = False


class Exchange:
    """Bodies are buffered as received, up to BUFFERED_BYTES_MAX; headers are stored without credentials.

    `id` is unique, also across processes; what is recorded twice under one id counts once.
    `request_bytes` and `response_bytes` are the sizes as received, of bodies that were too large to buffer as well.
    `is_reserved`: the budget of its key holds an estimate for it. `is_sent`: the whole request was sent or noted.
    `explicit_cache_tokens` of its prompt are in the explicit cache that it refers to; `opening_changes` and
    `closing_changes` are what happened to that cache before the call and by its response.
    `record` belongs to the watcher. `queue_length` is how many exchanges waited for the recorder before this one.
    `original_body` is the request body as received, if a rewritten one was sent; `is_planned` says whether the planner
    has seen it. `analysis` has the plan of a message on a WebSocket. `session_id` is set once it is recorded.
    """

    def __init__(
        self,
        target: Target,
        headers: Headers,
        caller: GatewayCaller,
        at: float,
        *,
        method: str = "POST",
        id: str | None = None,
    ) -> None:
        self.id = id or new_ulid(at)
        self.target = target
        self.method = method
        self.caller = caller
        self.headers = drop_credentials(headers)
        self.started_at = at
        self.ended_at = at
        self.first_byte_at: float | None = None
        self.status = 0
        self.response_headers: Headers = []
        self.is_reserved = False
        self.is_sent = False
        self.end: ExchangeEnd = "cancelled"
        self.is_ended = False
        self.changes: tuple[RequestChange, ...] = ()
        self.control_changes: tuple[CacheControlsApplied, ...] = ()
        self.explicit_cache_tokens = 0
        self.opening_changes: tuple[ExplicitCacheChanged, ...] = ()
        self.closing_changes: tuple[ExplicitCacheChanged, ...] = ()
        self.session_id = ""
        self.record: object = None
        self.queue_length = 0
        self.original_body: bytes | None = None
        self.is_planned = False
        self.websocket_call: WebSocketCall | None = None
        self.analysis: RequestAnalysis | None = None
        self.request_bytes = 0
        self.response_bytes = 0
        self._request = BoundedBuffer(is_too_large=exceeds_buffer_limit(headers))
        self._response = BoundedBuffer()

    def make_ping_id(self, at: float) -> str:
        """Of the charge of a ping that repeats this exchange."""
        return f"{self.id}.ping.{at}"

    @property
    def is_recorded(self) -> bool:
        """Requests that only read, such as a list of models, cost nothing; what a batch cost is in its results."""
        return self.method == "POST" or self.reads_batch_results

    @property
    def reads_batch_results(self) -> bool:
        return self.method == "GET" and self.target.reads_results

    @property
    def is_answered(self) -> bool:
        """Whether the status says that the provider did what was asked for: some hosts answer calls with 201."""
        return 200 <= self.status < 300

    @property
    def may_have_reply(self) -> bool:
        """Unless the provider refused it, a request that was sent is not free."""
        return self.status == 0 or self.is_answered

    @property
    def is_successful(self) -> bool:
        """Whether the whole response has arrived, and is none of an error."""
        return self.is_answered and self.end == "whole"

    def decode_response(self) -> bytes | None:
        """The decompressed response; None if it was too large to buffer or is damaged."""
        encoding = (get_header_value(self.response_headers, b"content-encoding") or b"").decode("latin-1")
        try:
            return decompress_body(self.response_body or b"", encoding) or None
        except ProviderError:
            return None

    @property
    def request_body(self) -> bytes | None:
        """None if it was too large to buffer."""
        return self._request.join()

    @property
    def response_body(self) -> bytes | None:
        return self._response.join()

    @property
    def buffered_bytes(self) -> int:
        return self._request.size_bytes + self._response.size_bytes + len(self.original_body or b"")

    def add_request_bytes(self, body: bytes) -> None:
        self.request_bytes += len(body)
        self._request.add(body)

    def add_response_bytes(self, body: bytes) -> None:
        self.response_bytes += len(body)
        self._response.add(body)

    def restore_request(self, body: bytes | None, size_bytes: int) -> None:
        """The request as another process received it; a body of None was too large to buffer."""
        self._request, self.request_bytes = BoundedBuffer(is_too_large=body is None), size_bytes
        self._request.add(body or b"")

    def restore_response(self, body: bytes | None, size_bytes: int) -> None:
        self._response, self.response_bytes = BoundedBuffer(is_too_large=body is None), size_bytes
        self._response.add(body or b"")

    def free_request(self) -> None:
        """Frees the buffered request."""
        self._request = BoundedBuffer()
        self.original_body = None

    def free_response(self) -> None:
        self._response = BoundedBuffer()


class BoundedBuffer:
    """Collects chunks up to BUFFERED_BYTES_MAX; drops all of them when the limit is exceeded."""

    def __init__(self, *, is_too_large: bool = False) -> None:
        self._chunks: list[bytes] | None = None if is_too_large else []
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        if self._chunks is None:
            return
        if self.size_bytes + len(chunk) > BUFFERED_BYTES_MAX:
            self._chunks, self.size_bytes = None, 0
            return
        self._chunks.append(chunk)
        self.size_bytes += len(chunk)

    def join(self) -> bytes | None:
        return None if self._chunks is None else b"".join(self._chunks)


def exceeds_buffer_limit(headers: Headers) -> bool:
    """Whether the declared content length exceeds the buffer limit."""
    length = get_header_value(headers, b"content-length") or b""
    return length.isdigit() and int(length[:20]) > BUFFERED_BYTES_MAX


def drop_credentials(headers: Headers) -> Headers:
    """Drops credentials, cookies and the headers addressed to the gateway itself."""
    hidden = (*CREDENTIAL_HEADERS, b"cookie", b"set-cookie", b"x-amz-security-token")
    return [(name, value) for name, value in headers if name not in hidden and not name.startswith(OWN_HEADER_PREFIX)]


class ExchangeWatcher(Protocol):
    """Observes exchanges. Must return at once (it only enqueues); whatever it raises is ignored."""

    def on_request(self, exchange: Exchange) -> None:
        """The request body is complete."""

    def on_end(self, exchange: Exchange) -> Awaitable[None] | None:
        """The response ended, complete or not. What it returns is done once a kill cannot lose the record."""


class ForwardRequest(msgspec.Struct, frozen=True):
    """The request to forward: its headers, the source of its body, and the rewrite, if any, of the received `body`.

    `cache_use` is set if it refers to an explicit cache.
    """

    headers: Headers
    receive: Receive
    analysis: RequestAnalysis | None = None
    body: bytes = b""
    cache_use: CacheUse | None = None

    @property
    def sent_body(self) -> bytes:
        """The body as planned, with all of the prompt in it."""
        return self.analysis.body or self.body if self.analysis else self.body

    @property
    def changes(self) -> tuple[RequestChange, ...]:
        return self.analysis.changes if self.analysis else ()


async def prepare_request(
    rewriter: ConversationRewriter, exchange: Exchange, headers: Headers, receive: Receive
) -> ForwardRequest:
    """Never raises: if anything goes wrong, the request is forwarded unchanged."""
    target = exchange.target
    if exceeds_buffer_limit(headers) or target.adapter_name is None:
        return ForwardRequest(headers, receive)
    messages, body = await collect_body(receive)
    is_plain = get_header_value(headers, b"content-encoding") in (None, b"identity")
    if body is None or not is_plain or has_too_many_values(body):
        return ForwardRequest(headers, replay(messages, receive))
    analysis: RequestAnalysis | None = None
    analyze = functools.partial(
        rewriter.analyze,
        target.adapter_name,
        body,
        path=target.path,
        provider=target.provider,
        path_fields=target.path_fields,
        learner=make_learner(target, exchange.caller),
    )
    try:
        analysis = await asyncio.to_thread(analyze, account=exchange.caller.account, at=exchange.started_at)
    except Exception as error:  # noqa: BLE001 - a failing rewrite must not break the client's call
        # Log the type only: the message could quote the prompt.
        logger.info("a request is forwarded unchanged: %s", type(error).__name__)
    if analysis is None or analysis.body is None:
        return ForwardRequest(headers, replay(messages, receive), analysis, body)
    rewritten = analysis.body
    exchange.original_body = body
    whole: Message = {"type": "http.request", "body": rewritten, "more_body": False}
    return ForwardRequest(correct_length(headers, rewritten), replay([whole], receive), analysis, body)


def correct_length(headers: Headers, body: bytes) -> Headers:
    """Corrects an existing content-length; a chunked body stays chunked."""
    length = b"%d" % len(body)
    return [(name, length if name == b"content-length" else value) for name, value in headers]


async def collect_body(receive: Receive) -> tuple[list[Message], bytes | None]:
    """The messages received, and the body if it is complete and not too large."""
    messages: list[Message] = []
    chunks: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        messages.append(message)
        chunk = message.get("body", b"")
        if message["type"] != "http.request" or not isinstance(chunk, bytes):
            return messages, None
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > BUFFERED_BYTES_MAX:
            return messages, None
        if not message.get("more_body", False):
            return messages, b"".join(chunks)


def replay(messages: list[Message], receive: Receive) -> Receive:
    """A receive function that returns the collected messages first."""
    collected = iter(messages)

    async def replayed() -> Message:
        message = next(collected, None)
        return await receive() if message is None else message

    return replayed
