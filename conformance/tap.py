"""A recording tap: a reverse proxy that keeps the bytes of every request and response it passes on."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import aiohttp
import msgspec
from aiohttp import web

from holdfast.testing.server_thread import LoopThread

BODY_BYTES_MAX = 64 * 1024 * 1024
TIMEOUT_SECONDS = 120
# They belong to one connection, and each side of the tap has its own.
_CONNECTION_HEADERS = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "upgrade"})


class TappedExchange(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: bytes
    status: int
    response: bytes
    by_gateway: bool = False
    """Whether the gateway answered by itself."""
    headers: tuple[tuple[str, str], ...] = ()
    """Those of the request."""


class Tap:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.exchanges: list[TappedExchange] = []
        self.url = ""

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def aclose(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [item for item in request.headers.items() if item[0].lower() not in _CONNECTION_HEADERS]
        received = bytearray()
        async with self._session.request(
            request.method, self._upstream + request.raw_path, headers=headers, data=body or None, allow_redirects=False
        ) as upstream:
            response = web.StreamResponse(status=upstream.status)
            for name, value in upstream.headers.items():
                if name.lower() not in _CONNECTION_HEADERS:
                    response.headers.add(name, value)
            # Some clients disconnect after the last event, before the response ends.
            with suppress(ConnectionError):
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    received += chunk
                    await response.write(chunk)
                await response.write_eof()
            own = "x-holdfast-gateway" in upstream.headers
            self.exchanges.append(
                TappedExchange(
                    request.method, request.raw_path, body, upstream.status, bytes(received), own, tuple(headers)
                )
            )
        return response


@contextmanager
def open_tap(upstream: str) -> Iterator[Tap]:
    tap = Tap(upstream)
    with LoopThread() as thread:
        thread.run(tap.start())
        try:
            yield tap
        finally:
            thread.run(tap.aclose())
