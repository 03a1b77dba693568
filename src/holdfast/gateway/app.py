"""The gateway's ASGI application: forwards provider requests and responses byte for byte, as they arrive."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.engine.leases import ProcessLeases
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.exchange import (
    BUFFERED_BYTES_MAX,
    AuthenticatedRequest,
    Exchange,
    ExchangeWatcher,
    ForwardRequest,
    GatewayRefusedError,
    Message,
    Receive,
    Send,
    collect_body,
    correct_length,
    exceeds_buffer_limit,
    prepare_request,
    replay,
)
from holdfast.gateway.http.connection import ConnectionCutError, UpstreamConnection, UpstreamPool
from holdfast.gateway.http.headers import Headers, filter_request_headers, filter_response_headers, get_header_value
from holdfast.gateway.keep_alive import ForwardedConversation, GatewayKeepAlive
from holdfast.gateway.key_limits import KeyBudgets, RequestSize, measure_request
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.explicit_caches import (
    CACHE_RESPONSE_BYTES_MAX,
    CACHE_SECONDS_MAX,
    REFUSED_STATUSES,
    CacheUse,
    ExplicitCaches,
    find_query_key,
    identify_credential,
)
from holdfast.gateway.rewrite.operations import IMPLICIT_CACHE_MISSED
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.routes import WEBSOCKET_METHOD, RouteTable, Target, Upstream, get_raw_path
from holdfast.gateway.websocket import (
    HANDSHAKE_SECONDS_MAX,
    PING_EXTENSION,
    UpstreamSocket,
    WebSocketRelay,
    make_accept_message,
    make_calls,
    make_handshake,
)
from holdfast.gateway.websocket_calls import ResponsePrompts, SocketOwner
from holdfast.providers.registry import get_adapter

logger = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
T = TypeVar("T")

UNSENT_SECONDS_MAX = 5.0
"""How long to read a request whose upstream cannot be reached."""

DURABLE_SECONDS_MAX = 5.0
"""How long the last byte of a response waits for its record to be on disk."""

DRAIN_SECONDS_MAX = 600.0
"""With `drain`: how long to keep reading a response whose client has disconnected, to learn its usage."""


class Authenticator(Protocol):
    async def authenticate(
        self, target: Target, headers: Headers, *, is_call: bool = True, address: str = "", method: str = "POST"
    ) -> AuthenticatedRequest:
        """Raises GatewayRefusedError if the caller may not use the gateway.

        What is no call by itself, such as opening a WebSocket, is not counted against a request rate.
        """


class Gateway:
    """ASGI application that forwards provider requests to their upstream; serves the paths that `routes` knows."""

    def __init__(
        self,
        routes: RouteTable,
        *,
        authenticator: Authenticator,
        watcher: ExchangeWatcher,
        clock: Clock,
        rewriter: ConversationRewriter | None = None,
        keep_alive: GatewayKeepAlive | None = None,
        explicit_caches: ExplicitCaches | None = None,
        budgets: KeyBudgets | None = None,
        drain: bool = False,
        leases: ProcessLeases | None = None,
    ) -> None:
        self._routes = routes
        self._authenticator = authenticator
        self._watcher = watcher
        self._clock = clock
        self._rewriter = rewriter
        self._keep_alive = keep_alive
        self._explicit_caches = explicit_caches
        self._budgets = budgets
        self._drain = drain
        self._single_flight = SingleFlight(leases=leases)
        self._connections = UpstreamPool()
        self._prompts = ResponsePrompts()
        self.active_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self._routes.find_target(get_raw_path(scope))
        is_websocket = scope["type"] == "websocket"
        respond = _send_as_denial(send) if is_websocket else send
        try:
            method, address = scope.get("method", WEBSOCKET_METHOD), _get_address(scope)
            admitted = await self._authenticator.authenticate(
                target, scope["headers"], is_call=not is_websocket, address=address, method=method
            )
        except GatewayRefusedError as error:
            await _refuse(target, error, respond)
            return
        exchange = Exchange(target, scope["headers"], admitted.caller, self._clock(), method=scope.get("method", "GET"))
        self.active_requests += 1
        try:
            receive = await self._check_budget(exchange, receive, is_websocket=is_websocket)
            if is_websocket:
                await self._open_websocket(exchange, admitted, scope, (receive, send))
            else:
                await self._handle(exchange, admitted, scope, (receive, send))
        except GatewayRefusedError as error:
            await _refuse(target, error, respond)
        finally:
            self._release_unused(exchange)
            if not exchange.is_ended:
                self._record_end(exchange)
            self.active_requests -= 1

    def close(self) -> None:
        self._connections.close()
        if self._keep_alive is not None:
            self._keep_alive.close()

    async def _check_budget(self, exchange: Exchange, receive: Receive, *, is_websocket: bool) -> Receive:
        """Reserves what the call may cost; returns the source of its body, which had to be read for that.

        Raises GatewayRefusedError if the budget of the key is spent or has no room.
        """
        key_id = exchange.caller.key_id
        if self._budgets is None or key_id is None or not exchange.caller.has_budget:
            return receive
        if is_websocket or exchange.method != "POST":
            await self._budgets.check(key_id)
            return receive
        declared = get_header_value(exchange.headers, b"content-length") or b""
        if exceeds_buffer_limit(exchange.headers):
            request = RequestSize(int(declared[:20]))
        else:
            messages, body = await collect_body(receive)
            receive = replay(messages, receive)
            if messages[-1]["type"] != "http.request":
                return receive  # The client left before its request was complete: nothing will be called.
            # In a thread: what little there is of a compressed body can stand for much.
            request = await asyncio.to_thread(measure_request, body, exchange.headers)
        exchange.is_reserved = await self._budgets.reserve(exchange.id, key_id, exchange.target, request)
        return receive

    def _release_unused(self, exchange: Exchange) -> None:
        """Frees the reservation of a call that the provider never got; all others are settled by the recorder."""
        is_unused = exchange.end == "unreachable" or not exchange.is_sent
        if self._budgets is not None and exchange.is_reserved and is_unused and exchange.caller.key_id is not None:
            self._budgets.release(exchange.id, exchange.caller.key_id, exchange.started_at)

    async def _handle(
        self, exchange: Exchange, admitted: AuthenticatedRequest, scope: Scope, channels: tuple[Receive, Send]
    ) -> None:
        receive, send = channels
        request = ForwardRequest(admitted.headers, receive)
        if admitted.improve and self._rewriter is not None and exchange.target.adapter_name is not None:
            request = await prepare_request(self._rewriter, exchange, admitted.headers, receive)
            exchange.changes, exchange.is_planned = request.changes, request.analysis is not None
        if request.analysis is None:
            await self._forward(exchange, request, scope, send)
            return
        analysis, planned = request.analysis, request
        request = await self._use_explicit_cache(exchange, request, scope)
        # Single flight: of concurrent requests with the same prefix, one writes the cache and the others wait.
        try:
            async with self._single_flight.acquire(analysis.flight_key, self._clock) as slot:
                if not await self._forward(exchange, request, scope, send, on_response_started=slot.mark_begun):
                    whole = replay([_make_body_message(planned.sent_body)], receive)
                    planned = msgspec.structs.replace(planned, receive=whole)
                    distrust = functools.partial(self._distrust_cache, exchange, request.cache_use)
                    await self._forward(exchange, planned, scope, send, on_response_started=distrust)
        finally:
            if not exchange.is_successful:
                self._notify(functools.partial(self._record_response, analysis), exchange)

    async def _use_explicit_cache(self, exchange: Exchange, request: ForwardRequest, scope: Scope) -> ForwardRequest:
        """The request with a reference to an explicit cache, which is created or extended first if that pays.

        Never raises: if anything goes wrong, the request is sent with all of its prompt.
        """
        caches, analysis = self._explicit_caches, request.analysis
        if caches is None or analysis is None or analysis.adapter.name != "gemini":
            return request
        upstream, query = self._routes.upstreams[exchange.target.mount], scope.get("query_string", b"")
        begin = functools.partial(caches.begin, analysis, request.sent_body, path=exchange.target.path)
        try:
            credential = identify_credential(request.headers, query, upstream.authority)
            use = await asyncio.to_thread(begin, credential=credential, at=exchange.started_at)
            if use is None:
                return request
            await self._send_cache_request(use, upstream, request.headers, find_query_key(query))
            referring = use.encode()
        except Exception as error:  # noqa: BLE001 - a cache that fails must not break the client's call
            logger.info("a request is sent without an explicit cache: %s", type(error).__name__)
            return request
        exchange.opening_changes = use.take_changes()
        if use.cache is None or referring is None:
            return request
        exchange.explicit_cache_tokens = use.cache.tokens
        exchange.changes = (*exchange.changes, RequestChange(IMPLICIT_CACHE_MISSED, use.cache.name, is_applied=True))
        whole = replay([_make_body_message(referring, recorded=request.sent_body)], request.receive)
        headers = correct_length(request.headers, referring)
        return msgspec.structs.replace(request, headers=headers, receive=whole, cache_use=use)

    async def _send_cache_request(self, use: CacheUse, upstream: Upstream, headers: Headers, key: bytes) -> None:
        request, caches = use.request, self._explicit_caches
        if request is None or caches is None:
            return
        path = (upstream.prefix + request.endpoint.path).encode("latin-1") + (b"?" + key if key else b"")
        status, answer = 0, b""
        try:
            async with asyncio.timeout(CACHE_SECONDS_MAX):
                status, answer = await self._connections.exchange(
                    upstream,
                    request.endpoint.method,
                    path,
                    headers=headers,
                    body=request.body,
                    bytes_max=CACHE_RESPONSE_BYTES_MAX,
                )
        except (ConnectionCutError, TimeoutError):
            pass
        finally:
            # Also if the client has left: what was sent may have changed the cache.
            await asyncio.shield(asyncio.to_thread(caches.finish, use, status, answer, at=self._clock()))

    def _lose_cache(self, exchange: Exchange, use: CacheUse | None, refusal: bytes) -> None:
        """The provider has refused a request with a reference, which is sent again without it."""
        exchange.add_response_bytes(refusal)
        body = exchange.decode_response() or b""
        exchange.restore_response(b"", 0)
        if use is not None and self._explicit_caches is not None:
            error = get_adapter(exchange.target.format).decode_error(exchange.status, {}, body)
            self._explicit_caches.lose(use, error, at=self._clock())
            exchange.closing_changes = use.take_changes()

    def _distrust_cache(self, exchange: Exchange, use: CacheUse | None) -> None:
        """The provider has accepted the request without the reference."""
        if use is not None and self._explicit_caches is not None:
            self._explicit_caches.distrust(use, at=self._clock())
            exchange.closing_changes += use.take_changes()

    async def _open_websocket(
        self, exchange: Exchange, admitted: AuthenticatedRequest, scope: Scope, channels: tuple[Receive, Send]
    ) -> None:
        """Opens one upstream, and passes on its refusal as an HTTP response or its messages as they come."""
        target, upstream = exchange.target, self._routes.upstreams[exchange.target.mount]
        respond = _send_as_denial(channels[1])
        handshake = make_handshake(filter_request_headers(admitted.headers, upstream.authority), scope["subprotocols"])
        try:
            # Not from the pool: an idle connection may just be closing, and clients take a failed upgrade as final.
            connection = await self._connections.connect(upstream)
        except ConnectionCutError:
            await _unreachable(exchange, respond)
            return
        active = _ActiveConnection(self._connections, upstream, connection, drain=self._drain)
        try:
            connection.start_request("GET", _upstream_path(upstream, target, scope), handshake.headers, upgrades=True)
            connection.end_request()
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                head = await connection.read_head()
            if head.status >= 300:
                await _relay_response(exchange, active, respond, on_complete=self._end_durably)
                return
            accepted = make_accept_message(head, handshake) if head.status == 101 else None
            if accepted is None:
                # An answer to a GET, for which neither path nor budget were checked.
                raise ConnectionCutError("it opened no WebSocket")
            await channels[0]()  # The client's `websocket.connect`.
            await channels[1](accepted)
        except (ConnectionCutError, TimeoutError) as error:
            await _unreachable(exchange, respond, str(error))
            return
        else:
            await self._relay_websocket(exchange, admitted, scope, channels, upstream=UpstreamSocket(connection))
        finally:
            active.release()

    async def _relay_websocket(
        self,
        exchange: Exchange,
        admitted: AuthenticatedRequest,
        scope: Scope,
        channels: tuple[Receive, Send],
        *,
        upstream: UpstreamSocket,
    ) -> None:
        unconfirmed: list[Awaitable[None]] = []

        def end_call(call: Exchange) -> None:
            if call.analysis is not None:
                self._notify(functools.partial(self._record_response, call.analysis), call)
            durable = self._notify(self._watcher.on_end, call)
            if durable is not None:
                unconfirmed.append(durable)

        async def wait_until_durable() -> None:
            while unconfirmed:
                await _wait(unconfirmed.pop())

        owner = SocketOwner(
            exchange.target,
            scope["headers"],
            admitted.caller,
            self._clock,
            functools.partial(self._notify, self._watcher.on_request),
            end_call,
        )
        authenticate = functools.partial(self._authenticator.authenticate, exchange.target, scope["headers"])
        relay = WebSocketRelay(
            exchange.target,
            upstream,
            channels,
            make_calls(owner, self._prompts, scope.get("query_string", b"")),
            authenticate=functools.partial(authenticate, address=_get_address(scope), method=WEBSOCKET_METHOD),
            budgets=self._budgets,
            rewriter=self._rewriter,
            clock=self._clock,
            passes_pings=PING_EXTENSION in scope.get("extensions", {}),
            drain_seconds=DRAIN_SECONDS_MAX if self._drain else 0.0,
            wait_until_durable=wait_until_durable,
        )
        await relay.run()

    async def _forward(
        self,
        exchange: Exchange,
        request: ForwardRequest,
        scope: Scope,
        send: Send,
        *,
        on_response_started: Callable[[], None] = lambda: None,
    ) -> bool:
        """False if the provider refused the request because of its explicit cache, and the client has no answer."""
        upstream = self._routes.upstreams[exchange.target.mount]
        try:
            connection = await self._connections.acquire(upstream)
        except ConnectionCutError as error:
            await self._receive_unsent(exchange, request.receive)
            await _unreachable(exchange, send, str(error))
            return True
        path = _upstream_path(upstream, exchange.target, scope)
        connection.start_request(scope["method"], path, filter_request_headers(request.headers, upstream.authority))
        # A client that leaves before the end of a batch's results has read them, too.
        drain = self._drain or exchange.reads_batch_results
        active = _ActiveConnection(self._connections, upstream, connection, drain=drain)
        sending = asyncio.ensure_future(self._send_request(exchange, active, request.receive))

        def learn(exchange: Exchange) -> None:
            if request.analysis is None or not exchange.is_successful:
                return
            self._record_response(request.analysis, exchange)
            if self._keep_alive is not None:
                head = path, request.headers
                idle = ForwardedConversation(request.analysis, exchange, request.body, upstream=upstream, head=head)
                self._keep_alive.watch(idle)

        def begin() -> None:
            exchange.first_byte_at = self._clock()
            on_response_started()

        end = functools.partial(self._end_durably, learn=learn)
        withheld = REFUSED_STATUSES if request.cache_use is not None else ()
        try:
            refusal = await _relay_response(
                exchange, active, send, on_started=begin, on_complete=end, withheld=withheld
            )
            if refusal is not None:
                self._lose_cache(exchange, request.cache_use, refusal)
            return refusal is None
        finally:
            sending.cancel()
            active.release()

    def _record_response(self, analysis: RequestAnalysis, exchange: Exchange) -> None:
        """Tells the planner what a call that it planned has read and written."""
        if analysis.call is not None and self._rewriter is not None:
            self._rewriter.record_response(
                analysis.call, exchange.decode_response() if exchange.is_successful else None
            )

    async def _receive_unsent(self, exchange: Exchange, receive: Receive) -> None:
        """Reads a request that cannot be forwarded, so that it is recorded."""
        with suppress(TimeoutError):
            async with asyncio.timeout(UNSENT_SECONDS_MAX):
                more_body = True
                while more_body and exchange.request_bytes <= BUFFERED_BYTES_MAX:
                    message = await receive()
                    exchange.add_request_bytes(message.get("body", b""))
                    more_body = bool(message.get("more_body", False))
        exchange.is_sent = True
        self._notify(self._watcher.on_request, exchange)

    async def _send_request(self, exchange: Exchange, active: "_ActiveConnection", receive: Receive) -> None:
        """Forwards the request body as it arrives; returns when the client disconnects."""
        body_incomplete = True
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    active.on_disconnect(request_complete=not body_incomplete)
                    return
                if not body_incomplete:
                    continue
                body: bytes = message.get("body", b"")
                # Send first, then buffer for the recorder: recording must not delay the call.
                await active.connection.write_body(body)
                if not exchange.is_sent:
                    exchange.add_request_bytes(message.get("recorded", body))
                body_incomplete = bool(message.get("more_body", False))
                if not body_incomplete:
                    active.connection.end_request()
                    if not exchange.is_sent:
                        exchange.is_sent = True
                        self._notify(self._watcher.on_request, exchange)
        except Exception:
            active.connection.abort()
            raise

    def _record_end(self, exchange: Exchange) -> Awaitable[None] | None:
        exchange.ended_at, exchange.is_ended = self._clock(), True
        return self._notify(self._watcher.on_end, exchange)

    async def _end_durably(
        self, exchange: Exchange, *, learn: Callable[[Exchange], None] = lambda exchange: None
    ) -> None:
        """Records an exchange before its last byte is passed on, so that a kill loses no answered call."""
        durable = self._record_end(exchange)
        # While the disk writes, and before the client can send the request that follows.
        self._notify(learn, exchange)
        if durable is not None:
            await _wait(durable)

    def _notify(self, callback: Callable[[Exchange], T], exchange: Exchange) -> T | None:
        try:
            return callback(exchange)
        except Exception as error:  # noqa: BLE001 - a recording failure must not break the client's call
            logger.warning("an exchange was not recorded: %s", type(error).__name__)
            return None


async def _wait(durable: Awaitable[None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(DURABLE_SECONDS_MAX):
            await durable


class _ActiveConnection:
    """A connection while it serves one exchange; returned to the pool exactly once."""

    def __init__(self, pool: UpstreamPool, upstream: Upstream, connection: UpstreamConnection, *, drain: bool) -> None:
        self.connection = connection
        self.client_left = False
        self._drain = drain
        self._pool = pool
        self._upstream = upstream
        self._is_released = False

    def on_disconnect(self, *, request_complete: bool) -> None:
        """Aborts the upstream call, or keeps reading it for its usage if the whole request was sent."""
        self.client_left = True
        if self._drain and request_complete and not self._is_released:
            asyncio.get_running_loop().call_later(DRAIN_SECONDS_MAX, self._abort_connection)
        else:
            self._abort_connection()

    def _abort_connection(self) -> None:
        # A released connection may already serve another exchange.
        if not self._is_released:
            self.connection.abort()

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._pool.release(self._upstream, self.connection)


async def _relay_response(
    exchange: Exchange,
    active: _ActiveConnection,
    send: Send,
    *,
    on_complete: Callable[[Exchange], Awaitable[None]],
    on_started: Callable[[], None] = lambda: None,
    withheld: Collection[int] = (),
) -> bytes | None:
    """Forwards the response as it arrives. A truncated response is truncated for the client at the same byte.

    One with a `withheld` status is returned instead, so that the request can be sent in another way.
    """
    connection = active.connection
    try:
        head = await connection.read_head()
        exchange.status, exchange.response_headers = head.status, head.headers
        if head.status in withheld and not active.client_left:
            return await connection.read_rest(CACHE_RESPONSE_BYTES_MAX)
    except ConnectionCutError:
        if not active.client_left:
            await _unreachable(exchange, send, was_delivered=connection.has_delivered_request)
        return None
    if head.status == 200:
        # Providers make a written prefix readable once the response begins; waiting requests may go now.
        on_started()
    if not active.client_left:
        await send(
            {"type": "http.response.start", "status": head.status, "headers": filter_response_headers(head.headers)}
        )
    is_complete = False
    while not is_complete:
        try:
            chunk = await connection.read_chunk()
        except ConnectionCutError:
            # Returning without a final body message makes the server close the client's connection early,
            # so the client sees the same truncation as we did.
            exchange.end = "cancelled" if active.client_left else "cut"
            return None
        exchange.add_response_bytes(chunk)
        is_complete = connection.is_complete
        if is_complete:
            exchange.end = "whole"
            # Release before sending the last byte, so that the client's next request can reuse this connection.
            active.release()
            await on_complete(exchange)
        if not active.client_left:
            await send({"type": "http.response.body", "body": chunk, "more_body": not is_complete})
    return None


def _make_body_message(body: bytes, **more: bytes) -> Message:
    """A whole body as one ASGI message; `recorded` is the body to record in its place."""
    return {"type": "http.request", "body": body, "more_body": False, **more}


def _upstream_path(upstream: Upstream, target: Target, scope: Scope) -> bytes:
    query: bytes = scope.get("query_string", b"")
    path = (upstream.prefix + target.path).encode("latin-1")
    return b"%s?%s" % (path, query) if query else path


def _get_address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _send_as_denial(send: Send) -> Send:
    """Sends an HTTP response in place of a WebSocket (ASGI extension `websocket.http.response`)."""

    async def send_denial(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return send_denial


async def _unreachable(exchange: Exchange, send: Send, reason: str = "", *, was_delivered: bool = False) -> None:
    exchange.end = "cut" if was_delivered else "unreachable"
    message = f"the gateway got no response from its upstream for {exchange.target.mount}{reason and f': {reason}'}"
    await _refuse(exchange.target, GatewayRefusedError(502, message), send)


async def _refuse(target: Target, error: GatewayRefusedError, send: Send) -> None:
    """Answers in the provider's error format, so that its clients can parse it; a header marks it as ours."""
    status, body = error.encode(target)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-holdfast-gateway", b"refused"),
    ]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
