"""The simulator on a port: the providers' endpoints, and a few of its own to steer and to watch it."""

import asyncio
from contextlib import suppress

import msgspec
from aiohttp import web

from holdfast.canonical.encoding import plain_json
from holdfast.errors import ProviderError, UserError
from holdfast.providers.reading import BODY_BYTES_MAX
from holdfast.simulator.answer import Answer, Cut, Pause
from holdfast.simulator.dialect import Asked, refuse
from holdfast.simulator.dialects import all_dialects, refusing_dialect
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.records import RecordedRequest

SHUTDOWN_SECONDS_MAX = 1.0
PAUSE_STEP_SECONDS = 0.05
_PROVIDER = web.AppKey("provider", SimulatedProvider)


class RunningSimulator:
    """A simulator that answers on `url` until it is closed."""

    def __init__(self, runner: web.AppRunner, url: str) -> None:
        self._runner = runner
        self.url = url

    async def aclose(self) -> None:
        await self._runner.cleanup()


async def serve(provider: SimulatedProvider, *, host: str = "127.0.0.1", port: int = 0) -> RunningSimulator:
    """Port 0 takes a free one."""
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
    address, taken = runner.addresses[0][:2]
    shown = f"[{address}]" if ":" in address else address
    return RunningSimulator(runner, f"http://{shown}:{taken}")


class _Advance(msgspec.Struct, forbid_unknown_fields=True):
    advance_seconds: float


async def _respond(request: web.Request) -> web.StreamResponse:
    provider = request.app[_PROVIDER]
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        # What is left of the body stays unread, so the connection cannot be used again.
        refusal = _refusal(request, refuse(f"the request has more than {BODY_BYTES_MAX} bytes; send less", status=413))
        refusal.force_close()
        return refusal
    except (ConnectionError, web.RequestPayloadError, asyncio.IncompleteReadError):
        # The client has left before all of its request was here.
        return web.Response(status=400)
    if request.path.startswith("/_sim/"):
        return _steer(provider, request, body)
    answer = provider.answer(request.method, request.path, headers=request.headers, body=body, query=request.query)
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    # The client has left, or was meant to be left; there is nobody to tell.
    with suppress(ConnectionError):
        await _send(request, response, answer)
    return response


async def _send(request: web.Request, response: web.StreamResponse, answer: Answer) -> None:
    for chunk in answer.chunks:
        match chunk:
            case Pause(seconds=seconds):
                await _pause(request, seconds)
            case Cut():
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionAbortedError
            case bytes():
                # Not before there is something to send: a reply that begins late has a late status, too.
                if not response.prepared:
                    await response.prepare(request)
                await response.write(chunk)
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()


async def _pause(request: web.Request, seconds: float) -> None:
    """Be silent, unless the client has left meanwhile."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionAbortedError
        await asyncio.sleep(min(left, PAUSE_STEP_SECONDS))


def _steer(provider: SimulatedProvider, request: web.Request, body: bytes) -> web.Response:
    match f"{request.method} {request.path}":
        case "POST /_sim/clock":
            try:
                now = provider.advance(msgspec.json.decode(body, type=_Advance).advance_seconds)
            except (msgspec.MsgspecError, UnicodeError, UserError) as error:
                return _refusal(request, refuse(f'{error}; send {{"advance_seconds": 300}}'))
            return _shown({"now": now})
        case "GET /_sim/requests":
            return _shown({"requests": [_shown_request(recorded) for recorded in provider.requests]})
        case "GET /_sim/cache":
            return _shown({"now": provider.now(), "entries": provider.cache, "named": provider.named_caches})
        case _:
            known = "POST /_sim/clock, GET /_sim/requests, GET /_sim/cache"
            return _refusal(request, refuse(f"no such endpoint; there are {known}", status=404))


def _shown_request(request: RecordedRequest) -> dict[str, object]:
    """The body as text, because a parsed one would no longer show its bytes."""
    return {
        "at": request.at,
        "method": request.method,
        "path": request.path,
        "status": request.status,
        "body": request.body.decode(errors="replace"),
    }


def _shown(value: object) -> web.Response:
    return web.Response(body=plain_json(value), content_type="application/json")


def _refusal(request: web.Request, error: ProviderError) -> web.Response:
    asked = Asked(request.method, request.path, request.headers)
    status, body = refusing_dialect(asked, all_dialects()).refusal(error)
    return web.Response(status=status, body=body, content_type="application/json")
