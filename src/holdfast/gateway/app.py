"""The gateway's ASGI application: forwards provider requests and responses byte for byte, as they arrive."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.errors import FailureKind
from holdfast.gateway.exchange import (
    Exchange,
    ExchangeWatcher,
    ForwardRequest,
    GatewayCaller,
    Message,
    Receive,
    prepare_request,
)
from holdfast.gateway.http.connection import ConnectionCutError, UpstreamConnection, UpstreamPool
from holdfast.gateway.http.headers import filter_request_headers, filter_response_headers
from holdfast.gateway.http.response_parser import Headers
from holdfast.gateway.keep_alive import GatewayKeepAlive
from holdfast.gateway.rewrite.rewriter import RequestRewriter
from holdfast.gateway.routes import RouteTable, Target, Upstream, get_raw_path
from holdfast.providers.registry import get_adapter

logger = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

DRAIN_SECONDS_MAX = 600.0
"""With `drain`: how long to keep reading a response whose client has disconnected, to learn its usage."""

_KINDS: Mapping[int, FailureKind] = {401: "auth", 403: "auth", 429: "rate_limit"}


class AuthenticatedRequest(msgspec.Struct, frozen=True):
    """An authenticated request: its caller, and the headers to forward."""

    caller: GatewayCaller
    headers: Headers
    improve: bool = False


class GatewayRefusedError(Exception):
    """The gateway refuses a request; the client gets it in the provider's error format."""

    def __init__(self, status: int, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Authenticator(Protocol):
    async def authenticate(self, target: Target, headers: Headers) -> AuthenticatedRequest:
        """Raises GatewayRefusedError if the caller may not use the gateway."""


class Gateway:
    """ASGI application that forwards provider requests to their upstream; serves the paths that `routes` knows."""

    def __init__(
        self,
        routes: RouteTable,
        *,
        authenticator: Authenticator,
        watcher: ExchangeWatcher,
        clock: Clock,
        rewriter: RequestRewriter | None = None,
        keep_alive: GatewayKeepAlive | None = None,
        drain: bool = False,
    ) -> None:
        self._routes = routes
        self._authenticator = authenticator
        self._watcher = watcher
        self._clock = clock
        self._rewriter = rewriter
        self._keep_alive = keep_alive
        self._drain = drain
        self._single_flight = SingleFlight()
        self._connections = UpstreamPool()
        self.active_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self._routes.find_target(get_raw_path(scope))
        try:
            admitted = await self._authenticator.authenticate(target, scope["headers"])
        except GatewayRefusedError as error:
            await _refuse(target, error, send)
            return
        exchange = Exchange(target, scope["headers"], admitted.caller, self._clock(), method=scope["method"])
        self.active_requests += 1
        try:
            await self._handle(exchange, admitted, scope, (receive, send))
        finally:
            exchange.ended_at = self._clock()
            self._notify(self._watcher.on_end, exchange)
            self.active_requests -= 1

    def close(self) -> None:
        self._connections.close()
        if self._keep_alive is not None:
            self._keep_alive.close()

    async def _handle(
        self, exchange: Exchange, admitted: AuthenticatedRequest, scope: Scope, channels: tuple[Receive, Send]
    ) -> None:
        receive, send = channels
        request = ForwardRequest(admitted.headers, receive)
        if admitted.improve and self._rewriter is not None and exchange.target.adapter_name is not None:
            request = await prepare_request(self._rewriter, exchange, admitted.headers, receive)
            exchange.changes = request.changes
        if request.analysis is None:
            await self._forward(exchange, request, scope, send)
            return
        if self._keep_alive is not None:
            self._keep_alive.on_request_sent(request.analysis.digests)
        # Single flight: of concurrent requests with the same prefix, one writes the cache and the others wait.
        async with self._single_flight.acquire(request.analysis.flight_key, self._clock) as slot:
            await self._forward(exchange, request, scope, send, on_response_started=slot.mark_begun)

    async def _forward(
        self,
        exchange: Exchange,
        request: ForwardRequest,
        scope: Scope,
        send: Send,
        *,
        on_response_started: Callable[[], None] = lambda: None,
    ) -> None:
        upstream = self._routes.upstreams[exchange.target.mount]
        try:
            connection = await self._connections.acquire(upstream)
        except ConnectionCutError:
            await _unreachable(exchange, send)
            return
        path = _upstream_path(upstream, exchange.target, scope)
        connection.start_request(scope["method"], path, filter_request_headers(request.headers, upstream.authority))
        active = _ActiveConnection(self._connections, upstream, connection, drain=self._drain)
        sending = asyncio.ensure_future(self._send_request(exchange, active, request.receive))
        try:
            await _relay_response(exchange, active, send, on_response_started)
        finally:
            sending.cancel()
            active.release()
        ping = request.analysis.ping if request.analysis else None
        if self._keep_alive is not None and ping is not None and exchange.status == 200 and exchange.end == "whole":
            self._keep_alive.keep_alive(ping, exchange, upstream, (path, request.headers))

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
                exchange.add_request_bytes(body)
                body_incomplete = bool(message.get("more_body", False))
                if not body_incomplete:
                    active.connection.end_request()
                    self._notify(self._watcher.on_request, exchange)
        except Exception:
            active.connection.abort()
            raise

    def _notify(self, callback: Callable[[Exchange], None], exchange: Exchange) -> None:
        try:
            callback(exchange)
        except Exception as error:  # noqa: BLE001 - a recording failure must not break the client's call
            logger.warning("an exchange was not recorded: %s", type(error).__name__)


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
    exchange: Exchange, active: _ActiveConnection, send: Send, on_started: Callable[[], None]
) -> None:
    """Forwards the response as it arrives. A truncated response is truncated for the client at the same byte."""
    connection = active.connection
    try:
        head = await connection.read_head()
    except ConnectionCutError:
        if not active.client_left:
            await _unreachable(exchange, send)
        return
    exchange.status, exchange.response_headers = head.status, head.headers
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
            return
        exchange.add_response_bytes(chunk)
        is_complete = connection.is_complete
        if is_complete:
            exchange.end = "whole"
            # Release before sending the last byte, so that the client's next request can reuse this connection.
            active.release()
        if not active.client_left:
            await send({"type": "http.response.body", "body": chunk, "more_body": not is_complete})


def _upstream_path(upstream: Upstream, target: Target, scope: Scope) -> bytes:
    query: bytes = scope.get("query_string", b"")
    path = (upstream.prefix + target.path).encode("latin-1")
    return b"%s?%s" % (path, query) if query else path


async def _unreachable(exchange: Exchange, send: Send) -> None:
    exchange.end = "unreachable"
    message = f"the gateway got no response from its upstream for {exchange.target.mount}"
    await _refuse(exchange.target, GatewayRefusedError(502, message), send)


async def _refuse(target: Target, error: GatewayRefusedError, send: Send) -> None:
    """Answers in the provider's error format, so that its clients can parse it; a header marks it as ours."""
    kind = _KINDS.get(error.status, "server_error")
    status, body = get_adapter(target.format).encode_error(kind, error.message, status=error.status)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-holdfast-gateway", b"refused"),
    ]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
