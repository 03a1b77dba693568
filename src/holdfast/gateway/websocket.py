"""One WebSocket through the gateway: messages, pings and close codes pass both ways; calls are checked and recorded.

The client's side is ASGI. uvicorn passes pings and pongs on as messages of their own (`service/http`), so that client
and provider measure the whole way and no time-out of ours is added to theirs. The provider's side is an upgraded
connection with wsproto on top. A message is read to its end before it is sent on, because a call can be refused.
"""

import asyncio
import base64
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import parse_qs

import msgspec
from wsproto import ConnectionType
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, generate_accept_token

from holdfast.clock import Clock
from holdfast.engine.inject.openai_body import CACHE_KEY_FIELD
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.exchange import (
    AuthenticatedRequest,
    ExchangeEnd,
    GatewayCaller,
    GatewayRefusedError,
    Message,
    Receive,
    Send,
    make_learner,
)
from holdfast.gateway.http.connection import ConnectionCutError, UpstreamConnection
from holdfast.gateway.http.headers import Headers, filter_response_headers
from holdfast.gateway.http.response_parser import ResponseHead
from holdfast.gateway.key_limits import KeyBudgets
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.operations import CACHE_KEY_MISSING
from holdfast.gateway.routes import Target
from holdfast.gateway.websocket_calls import (
    CreateMessage,
    PromptPart,
    ResponseCalls,
    ResponsePrompts,
    SocketCalls,
    SocketOwner,
    UsageCalls,
    inherit_cache_key,
    splice_rewritten_body,
)

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Size limit of an upstream's message; a longer one closes the connection with code 1009. Clients have the server's."""

OPEN_CALLS_MAX = 64
"""Unanswered calls on one connection; each keeps its request until it is recorded."""

IDLE_SECONDS_MAX = 3_900.0
"""Without a message or ping for this long, both sides are closed. OpenAI ends every connection after 60 minutes."""

HANDSHAKE_SECONDS_MAX = 30.0

PING_EXTENSION = "holdfast.websocket.ping"
"""ASGI extension of our server: messages `websocket.ping` and `websocket.pong`, with the payload in `bytes`."""

CLOSE_REASON_CHARS_MAX = 100
"""A close frame has room for 123 bytes."""

# Close codes (RFC 6455, section 7.4.1).
_GOING_AWAY, _POLICY, _TOO_BIG, _INTERNAL_ERROR = 1001, 1008, 1009, 1011
_HANDSHAKE_HEADERS = (b"sec-websocket-accept", b"sec-websocket-extensions", b"sec-websocket-protocol")
_BODY_HEADERS = (b"content-length", b"transfer-encoding")


class Handshake(msgspec.Struct, frozen=True):
    """The headers that ask the upstream for a WebSocket, and its proof that it understood them."""

    headers: Headers
    accept_token: bytes


def make_handshake(headers: Headers, subprotocols: list[str]) -> Handshake:
    """Without extensions: compression would only add work, and a way to send little that becomes much."""
    key = base64.b64encode(secrets.token_bytes(16))
    # A handshake has no body: an upstream would wait for one that is announced.
    forwarded = [
        header for header in headers if not header[0].startswith(b"sec-websocket-") and header[0] not in _BODY_HEADERS
    ]
    forwarded += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
    forwarded.append((b"sec-websocket-key", key))
    if subprotocols:
        forwarded.append((b"sec-websocket-protocol", ", ".join(subprotocols).encode()))
    return Handshake(forwarded, generate_accept_token(key))


def make_accept_message(head: ResponseHead, handshake: Handshake) -> Message | None:
    """The message that accepts the client as the upstream accepted us; None if the upstream did not."""
    by_name = {name.lower(): value for name, value in head.headers}
    if by_name.get(b"sec-websocket-accept") != handshake.accept_token or b"sec-websocket-extensions" in by_name:
        return None
    dropped = (*_HANDSHAKE_HEADERS, *_BODY_HEADERS)
    headers = [header for header in filter_response_headers(head.headers) if header[0].lower() not in dropped]
    subprotocol = by_name.get(b"sec-websocket-protocol")
    return {
        "type": "websocket.accept",
        "subprotocol": None if subprotocol is None else subprotocol.decode("latin-1"),
        "headers": headers,
    }


def make_calls(owner: SocketOwner, prompts: ResponsePrompts, query: bytes) -> SocketCalls:
    if owner.target.adapter_name == "openai":
        return ResponseCalls(owner, prompts)
    fields = parse_qs(query.decode("latin-1"))
    # Azure calls it a deployment. Of several it is not known which one the provider takes.
    models = {value for name in ("model", "deployment") for value in fields.get(name, [])}
    return UsageCalls(owner, models.pop() if len(models) == 1 else "")


class UpstreamSocket:
    """WebSocket frames on an upgraded connection."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._frames = Connection(ConnectionType.CLIENT)

    async def send(self, event: Event) -> None:
        """Waits for the upstream's back-pressure. Once either side has closed, nothing is sent."""
        try:
            frame = self._frames.send(event)
        except LocalProtocolError:
            return
        await self._connection.write_body(bytes(frame))

    async def receive(self) -> AsyncIterator[Event]:
        """Whole messages, pings and pongs; at last the close, with code 1006 if the connection ended without one."""
        parts: list[str | bytes] = []
        size_bytes = 0
        while True:
            try:
                received = await self._connection.read_chunk()
            except ConnectionCutError:
                received = b""
            if not received:
                yield CloseConnection(1006)
                return
            self._frames.receive_data(received)
            for event in self._frames.events():
                if isinstance(event, TextMessage | BytesMessage):
                    data = event.data if isinstance(event.data, str) else bytes(event.data)
                    parts.append(data)
                    size_bytes += len(data.encode() if isinstance(data, str) else data)
                    if size_bytes > MESSAGE_BYTES_MAX:
                        yield CloseConnection(_TOO_BIG, f"a message has more than {MESSAGE_BYTES_MAX} bytes")
                        return
                    if event.message_finished:
                        yield _join_message(parts)
                        parts, size_bytes = [], 0
                elif isinstance(event, CloseConnection):
                    if self._frames.state is ConnectionState.OPEN:
                        # Not a frame of the upstream, but wsproto's answer to bytes that are none.
                        event = CloseConnection(1006)
                    yield event
                    return
                else:
                    yield event


def _join_message(parts: list[str | bytes]) -> TextMessage | BytesMessage:
    if isinstance(parts[0], str):
        return TextMessage("".join(part for part in parts if isinstance(part, str)))
    return BytesMessage(b"".join(part for part in parts if isinstance(part, bytes)))


class WebSocketRelay:
    """Passes messages on between a client and an upstream, until one of them closes."""

    def __init__(
        self,
        target: Target,
        upstream: UpstreamSocket,
        channels: tuple[Receive, Send],
        calls: SocketCalls,
        *,
        authenticate: Callable[..., Awaitable[AuthenticatedRequest]],
        budgets: KeyBudgets | None,
        rewriter: ConversationRewriter | None,
        clock: Clock,
        passes_pings: bool,
        drain_seconds: float = 0.0,
        wait_until_durable: Callable[[], Awaitable[None]],
    ) -> None:
        """`wait_until_durable` waits until the ended calls cannot be lost."""
        self._passes_pings = passes_pings
        self._wait_until_durable = wait_until_durable
        self._target = target
        self._upstream = upstream
        self._receive, self._send = channels
        self._calls = calls
        self._authenticate = authenticate
        self._budgets = budgets
        self._rewriter = rewriter
        self._clock = clock
        self._drain_seconds = drain_seconds
        self._active_at = 0.0
        self._is_client_gone = False
        self._is_closing = False
        self._end: ExchangeEnd = "cut"

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._active_at = loop.time()
        if self._target.adapter_name is None:
            # The provider may answer speech by itself, so the model is checked before any message.
            await self._check_budget()
            if self._is_closing:
                self._calls.end_all("cancelled")
                return
        tasks = (asyncio.ensure_future(self._forward_client()), asyncio.ensure_future(self._forward_upstream()))
        try:
            while not any(task.done() for task in tasks):
                idle_seconds = loop.time() - self._active_at
                if idle_seconds >= IDLE_SECONDS_MAX:
                    await self._close_both(_GOING_AWAY, "no message for too long")
                    return
                await asyncio.wait(tasks, timeout=IDLE_SECONDS_MAX - idle_seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._is_client_gone and self._calls.open_count:
                # With `drain`, the usage of responses that nobody reads any more is still learned.
                await asyncio.wait((tasks[1],), timeout=self._drain_seconds)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._calls.end_all(self._end)

    async def _forward_client(self) -> None:
        while True:
            message = await self._receive()
            self._active_at = asyncio.get_running_loop().time()
            match message["type"]:
                case "websocket.receive":
                    text: str | None = message.get("text")
                    event = BytesMessage(message["bytes"]) if text is None else TextMessage(text)
                    await self._forward_message(event)
                case "websocket.ping":
                    await self._upstream.send(Ping(message["bytes"]))
                case "websocket.pong":
                    await self._upstream.send(Pong(message["bytes"]))
                case "websocket.disconnect":
                    if not self._is_closing:
                        self._is_client_gone, self._end = True, "cancelled"
                    if not (self._drain_seconds and self._calls.open_count):
                        await self._upstream.send(CloseConnection(message.get("code", 1000), message.get("reason")))
                    return
                case _:
                    pass

    async def _forward_message(self, event: TextMessage | BytesMessage) -> None:
        raw = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
        message = self._calls.decode_message(raw)
        if message is None:
            await self._upstream.send(event)
            return
        try:
            if self._calls.open_count >= OPEN_CALLS_MAX:
                raise GatewayRefusedError(429, f"this connection has {OPEN_CALLS_MAX} unanswered calls; wait for one")
            admitted = await self._authenticate()
            exchange_id = await self._reserve(message, admitted.caller)
        except GatewayRefusedError as error:
            await self._send_error(error, message.stream_id)
            return
        caller = admitted.caller
        sent, changes = await self._improve(message, admitted) if admitted.improve else (message, ())
        # Before it is sent, because the first event of its response can arrive before sending returns.
        if not changes:
            self._calls.begin_call(sent, caller, exchange_id=exchange_id)
            await self._upstream.send(event)
            return
        self._calls.begin_call(sent, caller, exchange_id=exchange_id, original_body=message.body, changes=changes)
        await self._upstream.send(TextMessage(sent.raw.decode()))

    async def _reserve(self, message: CreateMessage, caller: GatewayCaller) -> str | None:
        """The id of the call's exchange, under which its cost is reserved; None without a budget."""
        if self._budgets is None or caller.key_id is None or not caller.has_budget:
            return None
        exchange_id = self._budgets.make_exchange_id()
        await self._budgets.reserve(exchange_id, caller.key_id, self._target, self._calls.measure_call(message))
        return exchange_id

    async def _improve(
        self, message: CreateMessage, admitted: AuthenticatedRequest
    ) -> tuple[CreateMessage, tuple[RequestChange, ...]]:
        """The message with its plan, and how it was rewritten; no changes if it is sent as it is. Never raises."""
        adapter_name = self._target.adapter_name
        if self._rewriter is None or adapter_name is None or not message.call.is_prompt_known:
            return message, ()
        body, inherited = message.body, inherit_cache_key(message)
        changes: tuple[RequestChange, ...] = ()
        if inherited is not None:
            body, changes = inherited, (RequestChange(CACHE_KEY_MISSING, CACHE_KEY_FIELD, is_applied=True),)
        analyze = functools.partial(
            self._rewriter.analyze,
            adapter_name,
            body,
            path=self._target.path,
            provider=self._target.provider,
            path_fields=self._target.path_fields,
            learner=make_learner(self._target, admitted.caller),
        )
        try:
            analysis = await asyncio.to_thread(analyze, account=admitted.caller.account, at=self._clock())
            rewritten = analysis.body or inherited
            spliced = splice_rewritten_body(message, rewritten) if rewritten is not None else None
        except Exception as error:  # noqa: BLE001 - a failing rewrite must not break the client's call
            # Log the type only: the message could quote the prompt.
            logger.info("a message is forwarded unchanged: %s", type(error).__name__)
            return message, ()
        sent = msgspec.structs.replace(spliced or message, analysis=analysis)
        return sent, () if spliced is None else (*changes, *analysis.changes)

    async def _forward_upstream(self) -> None:
        async for event in self._upstream.receive():
            self._active_at = asyncio.get_running_loop().time()
            match event:
                case TextMessage(data=text):
                    is_unrequested = self._calls.take_event(text.encode())
                    await self._wait_until_durable()
                    await self._send_client({"type": "websocket.send", "text": text})
                    if is_unrequested:
                        await self._check_budget()
                case BytesMessage(data=data):
                    self._calls.take_event(bytes(data))
                    await self._wait_until_durable()
                    await self._send_client({"type": "websocket.send", "bytes": bytes(data)})
                case Ping(payload=payload) if self._is_client_gone or not self._passes_pings:
                    await self._upstream.send(Pong(bytes(payload)))
                case Ping(payload=payload):
                    await self._send_client({"type": "websocket.ping", "bytes": bytes(payload)})
                case Pong(payload=payload) if self._passes_pings:
                    await self._send_client({"type": "websocket.pong", "bytes": bytes(payload)})
                case CloseConnection(code=1006):
                    await self._close_both(_INTERNAL_ERROR, "the upstream's connection ended without a close")
                case CloseConnection(code=code, reason=reason):
                    await self._close_both(code, reason or "")
                case _:
                    pass
            if self._is_closing or (self._is_client_gone and not self._calls.open_count):
                return

    async def _check_budget(self) -> None:
        """Ends a connection on which the provider calls the model by itself, once the budget of its key is spent, and
        one to a model that the key is not for."""
        try:
            admitted = await self._authenticate(is_call=False)
            if self._budgets is not None and admitted.caller.key_id is not None:
                request = self._calls.measure_call(CreateMessage(b"", b"", PromptPart(b"")))
                self._budgets.check_model(admitted.caller.key_id, self._target, request)
                await self._budgets.check(admitted.caller.key_id)
        except GatewayRefusedError as error:
            await self._send_error(error, "")
            await self._close_both(_POLICY, error.message[:CLOSE_REASON_CHARS_MAX])

    async def _send_error(self, error: GatewayRefusedError, stream_id: str) -> None:
        """An error event in the provider's format, with the status and headers that HTTP would have."""
        status, body = error.encode(self._target)
        event = {"type": "error", "status": status, **msgspec.json.decode(body, type=dict[str, msgspec.Raw])}
        headers = {"x-holdfast-gateway": "refused"}
        if error.retry_after_seconds is not None:
            headers["retry-after"] = str(error.retry_after_seconds)
        event["headers"] = headers
        if stream_id:
            event["stream_id"] = stream_id
        await self._send_client({"type": "websocket.send", "text": msgspec.json.encode(event).decode()})

    async def _send_client(self, message: Message) -> None:
        if self._is_client_gone:
            return
        try:
            await self._send(message)
        except OSError:
            # uvicorn's error for a client that has disconnected.
            self._is_client_gone, self._end = True, "cancelled"

    async def _close_both(self, code: int, reason: str) -> None:
        self._is_closing = True
        await self._upstream.send(CloseConnection(code, reason))
        await self._send_client({"type": "websocket.close", "code": code, "reason": reason})
