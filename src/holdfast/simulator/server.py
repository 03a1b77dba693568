"""Serves the simulator over HTTP and WebSocket: the providers' endpoints, and `/_sim/` to control and inspect it."""

import asyncio
from contextlib import suppress

import msgspec
from aiohttp import web

from holdfast.errors import ProviderError, UserError
from holdfast.providers.sse import SseParser
from holdfast.providers.wire_request import BODY_BYTES_MAX
from holdfast.simulator.exchange import ConnectionCut, Pause, RecordedRequest, SimulatedResponse
from holdfast.simulator.openai.responses import RESPONSES_PATH, ResponsesSocket, SocketRequest
from holdfast.simulator.provider import SimulatedProvider, encode_refusal, read_api_key
from holdfast.simulator.provider_api import SimulatedRequest, refuse
from holdfast.types.json_encoding import encode_json

SHUTDOWN_SECONDS_MAX = 1.0
PAUSE_STEP_SECONDS = 0.05  # How often a pause checks whether the client has disconnected.
_PROVIDER = web.AppKey("provider", SimulatedProvider)


class RunningSimulator:
    """A simulator that listens on `url` until it is closed."""

    def __init__(self, runner: web.AppRunner, url: str) -> None:
        self._runner = runner
        self.url = url

    async def aclose(self) -> None:
        await self._runner.cleanup()


async def serve_simulator(provider: SimulatedProvider, *, host: str = "127.0.0.1", port: int = 0) -> RunningSimulator:
    """Port 0 chooses a free port."""
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app[_PROVIDER] = provider
    app.router.add_route("*", "/{path:.*}", _respond)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS_MAX)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot listen on port {port} of {host}: {reason}; choose another host or port, or port 0 for a free one"
        ) from error
    address, bound_port = runner.addresses[0][:2]
    host_part = f"[{address}]" if ":" in address else address
    return RunningSimulator(runner, f"http://{host_part}:{bound_port}")


class _Advance(msgspec.Struct, forbid_unknown_fields=True):
    advance_seconds: float


async def _respond(request: web.Request) -> web.StreamResponse:
    provider = request.app[_PROVIDER]
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        # The rest of the body stays unread, so the connection cannot be reused.
        error = refuse(f"the request has more than {BODY_BYTES_MAX} bytes; send less", status=413)
        refusal = _error_response(request, error)
        refusal.force_close()
        return refusal
    except (ConnectionError, web.RequestPayloadError, asyncio.IncompleteReadError):
        # The client disconnected before its request was complete.
        return web.Response(status=400)
    if request.method == "HEAD":
        # Clients check with it whether the provider can be reached. A body would be read as the next response.
        return web.Response()
    if request.path.startswith("/_sim/"):
        return _handle_control(provider, request, body)
    if request.path == RESPONSES_PATH and request.headers.get("upgrade", "").lower() == "websocket":
        return await _serve_socket(provider, request)
    simulated = provider.handle(request.method, request.path, headers=request.headers, body=body, query=request.query)
    response = web.StreamResponse(status=simulated.status, headers=simulated.headers)
    # The client disconnected, or a fault closed the connection on purpose: no one is left to report to.
    with suppress(ConnectionError):
        await _send(request, response, simulated)
    return response


async def _serve_socket(provider: SimulatedProvider, request: web.Request) -> web.StreamResponse:
    try:
        read_api_key(request.headers, "authorization")
    except ProviderError as error:
        # The handshake is refused as any request for the path is.
        _, status, body = encode_refusal(SimulatedRequest("POST", request.path), error)
        return web.Response(status=status, body=body, content_type="application/json")
    socket = web.WebSocketResponse(max_msg_size=BODY_BYTES_MAX, compress=False)
    await socket.prepare(request)
    connection = ResponsesSocket(request.headers, provider.now())
    lanes: dict[str, asyncio.Task[None]] = {}
    try:
        async for message in socket:
            raw = message.data.encode() if isinstance(message.data, str) else b""
            parsed = connection.parse_message(raw, provider.now())
            if isinstance(parsed, bytes):
                await socket.send_str(parsed.decode())
                continue
            ends, previous = (socket, connection), lanes.get(parsed.stream_id)
            answer = _answer_message(provider, request, ends, (parsed, raw), previous=previous)
            lanes[parsed.stream_id] = asyncio.ensure_future(answer)
    finally:
        for task in lanes.values():
            task.cancel()
        await asyncio.gather(*lanes.values(), return_exceptions=True)
    return socket


async def _answer_message(
    provider: SimulatedProvider,
    http_request: web.Request,
    ends: tuple[web.WebSocketResponse, ResponsesSocket],
    message: tuple[SocketRequest, bytes],
    *,
    previous: "asyncio.Task[None] | None",
) -> None:
    """Messages of one lane are answered in order."""
    (socket, connection), (request, raw) = ends, message
    if previous is not None:
        await asyncio.wait((previous,))
    response = provider.answer_request(request.http_request, raw)
    if response.status != 200:
        await socket.send_str(connection.encode_failure(request, response).decode())
        return
    parser = SseParser()
    for chunk in response.chunks:
        match chunk:
            case Pause(seconds=seconds):
                await asyncio.sleep(seconds)
            case ConnectionCut():
                if http_request.transport is not None:
                    http_request.transport.abort()
                return
            case bytes():
                parser.feed(chunk)
                for event in parser.events():
                    await socket.send_str(connection.encode_event(request, event.data).decode())


async def _send(request: web.Request, response: web.StreamResponse, simulated: SimulatedResponse) -> None:
    for chunk in simulated.chunks:
        match chunk:
            case Pause(seconds=seconds):
                await _pause(request, seconds)
            case ConnectionCut():
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionAbortedError
            case bytes():
                # Headers are sent with the first chunk: a reply that starts late must have a late status line too.
                if not response.prepared:
                    await response.prepare(request)
                await response.write(chunk)
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()


async def _pause(request: web.Request, seconds: float) -> None:
    """Wait, unless the client disconnects meanwhile."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (remaining := until - loop.time()) > 0:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionAbortedError
        await asyncio.sleep(min(remaining, PAUSE_STEP_SECONDS))


def _handle_control(provider: SimulatedProvider, request: web.Request, body: bytes) -> web.Response:
    match f"{request.method} {request.path}":
        case "POST /_sim/clock":
            try:
                now = provider.advance(msgspec.json.decode(body, type=_Advance).advance_seconds)
            except (msgspec.MsgspecError, UnicodeError, UserError) as error:
                return _error_response(request, refuse(f'{error}; send {{"advance_seconds": 300}}'))
            return _json_response({"now": now})
        case "GET /_sim/requests":
            return _json_response({"requests": [_request_view(recorded) for recorded in provider.requests]})
        case "GET /_sim/cache":
            entries = {"entries": provider.cache, "explicit_caches": provider.explicit_caches}
            return _json_response({"now": provider.now(), **entries})
        case _:
            endpoints = "POST /_sim/clock, GET /_sim/requests, GET /_sim/cache"
            return _error_response(request, refuse(f"no such endpoint; there are {endpoints}", status=404))


def _request_view(request: RecordedRequest) -> dict[str, object]:
    """The body as text, because parsing and re-encoding it would change its bytes."""
    view = {name: getattr(request, name) for name in ("at", "method", "path", "status")}
    return {**view, "body": request.body.decode(errors="replace")}


def _json_response(value: object) -> web.Response:
    return web.Response(body=encode_json(value), content_type="application/json")


def _error_response(request: web.Request, error: ProviderError) -> web.Response:
    http_request = SimulatedRequest(request.method, request.path, request.headers)
    _, status, body = encode_refusal(http_request, error)
    return web.Response(status=status, body=body, content_type="application/json")
