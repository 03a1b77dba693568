"""The providers' own endpoints: a request's bytes go out as they came in, its reply's as they come."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.engine.gate import Gate
from holdfast.errors import FailureKind
from holdfast.gateway.exchange import Caller, Exchange, Watcher
from holdfast.gateway.headers import reply_headers, request_headers
from holdfast.gateway.improving import Improver
from holdfast.gateway.keeping import Keeper
from holdfast.gateway.line import CutError, Line, Lines
from holdfast.gateway.replaying import Message, Ready, Receive, made_ready
from holdfast.gateway.reply import Headers
from holdfast.gateway.routing import Target, Upstream, target_of
from holdfast.providers.registry import adapter_for

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, object]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


DRAIN_SECONDS_MAX = 600.0
"""How long a reply is read on whose client has left."""

_KINDS: Mapping[int, FailureKind] = {401: "auth", 403: "auth", 429: "rate_limit"}


class Admitted(msgspec.Struct, frozen=True):
    """Whose request it is, and the headers with which it goes on."""

    caller: Caller
    headers: Headers
    improve: bool = False


class TurnedAwayError(Exception):
    """The gateway itself says no, in the words of the provider."""

    def __init__(self, status: int, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Door(Protocol):
    async def admit(self, target: Target, headers: Headers) -> Admitted:
        """Raises TurnedAwayError for whom it does not let in."""


class Gateway:
    """An ASGI application in front of another: what is a provider's is forwarded, the rest is the other's."""

    def __init__(
        self,
        behind: App,
        upstreams: Mapping[str, Upstream],
        *,
        door: Door,
        watcher: Watcher,
        clock: Clock,
        improver: Improver | None = None,
        keeper: Keeper | None = None,
        drain: bool = False,
    ) -> None:
        self._behind = behind
        self._upstreams = upstreams
        self._door = door
        self._watcher = watcher
        self._clock = clock
        self._improver = improver
        self._keeper = keeper
        self._drain = drain
        self._gate = Gate()
        self._lines = Lines()
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = target_of(_raw_path(scope)) if scope["type"] == "http" else None
        if target is None:
            await self._behind(scope, receive, send)
            return
        headers = scope["headers"]
        assert isinstance(headers, list)
        try:
            admitted = await self._door.admit(target, headers)
        except TurnedAwayError as error:
            await _refuse(target, error, send)
            return
        exchange = Exchange(target, headers, admitted.caller, self._clock())
        self.under_way += 1
        try:
            await self._exchanged(exchange, admitted, scope, (receive, send))
        finally:
            exchange.ended_at = self._clock()
            self._tell(self._watcher.ended, exchange)
            self.under_way -= 1

    def close(self) -> None:
        self._lines.close()
        if self._keeper is not None:
            self._keeper.close()

    async def _exchanged(
        self, exchange: Exchange, admitted: Admitted, scope: Scope, ends: tuple[Receive, Send]
    ) -> None:
        receive, send = ends
        ready = Ready(admitted.headers, receive)
        if admitted.improve and self._improver is not None and exchange.target.speaks is not None:
            ready = await made_ready(self._improver, exchange, admitted.headers, receive)
            exchange.changes = ready.changes
        if ready.reading is None:
            await self._carried(exchange, ready, scope, send)
            return
        if self._keeper is not None:
            self._keeper.went_on(ready.reading.digests)
        async with self._gate.crossing(ready.reading.claim, self._clock) as crossing:
            await self._carried(exchange, ready, scope, send, begun=crossing.begun)

    async def _carried(
        self,
        exchange: Exchange,
        ready: Ready,
        scope: Scope,
        send: Send,
        *,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        upstream = self._upstreams[exchange.target.mount]
        try:
            line = await self._lines.take(upstream)
        except CutError:
            await _unreachable(exchange, send)
            return
        wanted = _wanted(upstream, exchange.target, scope)
        line.ask(str(scope["method"]), wanted, request_headers(ready.headers, upstream.authority))
        carried = _Carried(self._lines, upstream, line, drain=self._drain)
        going = asyncio.ensure_future(self._go(exchange, carried, ready.receive))
        try:
            await _come(exchange, carried, send, begun)
        finally:
            going.cancel()
            carried.give_back()
        letter = ready.reading.letter if ready.reading else None
        if self._keeper is not None and letter is not None and exchange.status == 200 and exchange.end == "whole":
            self._keeper.keep(letter, exchange, upstream, (wanted, ready.headers))

    async def _go(self, exchange: Exchange, carried: "_Carried", receive: Receive) -> None:
        """All that the client says goes on as it comes; ends when the client has left."""
        more = True
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    carried.leave(whole=not more)
                    return
                if not more:
                    continue
                body = message.get("body", b"")
                assert isinstance(body, bytes)
                await carried.line.say(body)
                exchange.asked(body)
                more = bool(message.get("more_body", False))
                if not more:
                    carried.line.said()
                    self._tell(self._watcher.asked, exchange)
        except Exception:
            carried.line.abort()
            raise

    def _tell(self, hear: Callable[[Exchange], None], exchange: Exchange) -> None:
        try:
            hear(exchange)
        except Exception as error:  # noqa: BLE001 - the client's call must not break, whatever this was
            logger.warning("an exchange is not recorded: %s", type(error).__name__)


class _Carried:
    """A line while it carries one exchange; given back once."""

    def __init__(self, lines: Lines, upstream: Upstream, line: Line, *, drain: bool) -> None:
        self.line = line
        self.left = False
        self._drain = drain
        self._lines = lines
        self._upstream = upstream
        self._given_back = False

    def leave(self, *, whole: bool) -> None:
        """The client has left. What it asked for ends, or is read on for what it takes, where the request was whole."""
        self.left = True
        if self._drain and whole and not self._given_back:
            asyncio.get_running_loop().call_later(DRAIN_SECONDS_MAX, self._give_up)
        else:
            self._give_up()

    def _give_up(self) -> None:
        # A line that was given back carries somebody else by now.
        if not self._given_back:
            self.line.abort()

    def give_back(self) -> None:
        if not self._given_back:
            self._given_back = True
            self._lines.give_back(self._upstream, self.line)


async def _come(exchange: Exchange, carried: _Carried, send: Send, begun: Callable[[], None]) -> None:
    """The reply as it comes. One that is cut is cut for the client as well, at the same byte."""
    line = carried.line
    try:
        head = await line.head()
    except CutError:
        if not carried.left:
            await _unreachable(exchange, send)
        return
    exchange.status, exchange.reply_headers = head.status, head.headers
    if head.status == 200:
        begun()
    if not carried.left:
        await send({"type": "http.response.start", "status": head.status, "headers": reply_headers(head.headers)})
    whole = False
    while not whole:
        try:
            chunk = await line.chunk()
        except CutError:
            # To return without an end closes the client's connection before the reply is whole, as ours was.
            exchange.end = "cancelled" if carried.left else "cut"
            return
        exchange.answered(chunk)
        whole = line.is_whole
        if whole:
            exchange.end = "whole"
            # Before the last byte is out: with it the next request may come, and find this line at rest.
            carried.give_back()
        if not carried.left:
            await send({"type": "http.response.body", "body": chunk, "more_body": not whole})


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path") or str(scope["path"]).encode()
    assert isinstance(raw, bytes)
    return raw.decode("latin-1")


def _wanted(upstream: Upstream, target: Target, scope: Scope) -> bytes:
    query = scope.get("query_string", b"")
    assert isinstance(query, bytes)
    path = (upstream.prefix + target.path).encode("latin-1")
    return b"%s?%s" % (path, query) if query else path


async def _unreachable(exchange: Exchange, send: Send) -> None:
    exchange.end = "unreachable"
    where = f"the gateway has no answer of its upstream for {exchange.target.mount}"
    await _refuse(exchange.target, TurnedAwayError(502, where), send)


async def _refuse(target: Target, error: TurnedAwayError, send: Send) -> None:
    """Said as the provider would, so that its clients can read it; a header says that it was not the provider."""
    kind = _KINDS.get(error.status, "server_error")
    status, body = adapter_for(target.speaks or target.mount).write_error(kind, error.message, status=error.status)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-holdfast-gateway", b"refused"),
    ]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
