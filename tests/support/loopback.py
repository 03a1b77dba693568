"""A provider on a loopback socket with scripted responses, and a transport to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.anthropic import anthropic
from holdfast.providers.connection_pool import Timeouts
from holdfast.providers.transport import HttpTransport
from holdfast.providers.wire_request import Transport
from holdfast.types.prompt import Parameters

KEY = "sk-ant-very-secret-key"
ENDPOINT = anthropic.endpoint(Parameters("m", 1, betas=("b1",)))
RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pauses:
    """A sleep that takes no time and records its length."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Server:
    """Passes each request to the next handler; the last one handles all later requests."""

    def __init__(self, *answers: RequestHandler) -> None:
        self._answers = list(answers)
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return await answer(request)


@asynccontextmanager
async def serving(*answers: RequestHandler) -> AsyncIterator[Server]:
    server = Server(*answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def open_transport(
    url: str,
    *,
    pauses: Pauses | None = None,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 - a frozen value
    attempts_max: int = 3,
    key: str = KEY,
    requests_max: int = 16,
) -> AsyncIterator[HttpTransport]:
    wire = HttpTransport(
        anthropic,
        url,
        key,
        timeouts=timeouts,
        attempts_max=attempts_max,
        requests_max=requests_max,
        sleep=pauses or Pauses(),
        chance=lambda: 0.5,
    )
    try:
        yield wire
    finally:
        await wire.aclose()


async def read_response(wire: Transport, body: bytes = b"{}") -> bytes:
    return b"".join([chunk async for chunk in wire.send(ENDPOINT, body)])


async def failure_of(wire: Transport) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        await read_response(wire)
    return failed.value


def says(text: str, *, status: int = 200, headers: dict[str, str] | None = None) -> RequestHandler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=status, headers=headers)

    return answer


def fails(status: int, kind: FailureKind, message: str = "no", **headers: str) -> RequestHandler:
    _, body = anthropic.encode_error(kind, message, status=status)
    return says(body.decode(), status=status, headers={name.replace("_", "-"): v for name, v in headers.items()})


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": "100"})
    await response.prepare(request)
    await response.write(b"first")
    assert request.transport is not None
    request.transport.close()
    return response


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class Endless:
    """Sends data until the client disconnects, and records when it does."""

    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.spoke = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=self._status)
        await response.prepare(request)
        try:
            while True:
                await response.write(b"more" * 1000)
                self.spoke.set()
                await asyncio.sleep(0.001)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
