"""A recording tap: a reverse proxy that keeps the bytes of every request and response it passes on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

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

    async def _pass_on_messages(self, request: web.Request, headers: list[tuple[str, str]]) -> web.StreamResponse:
        """A WebSocket: one exchange for each message of the client, answered by the messages that follow it."""
        sent = [item for item in headers if not item[0].lower().startswith("sec-websocket-")]
        try:
            upstream = await self._session.ws_connect(self._upstream + request.raw_path, headers=sent, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            own = "x-holdfast-gateway" in (error.headers or {})
            self.exchanges.append(TappedExchange(request.method, request.raw_path, b"", error.status, b"", own))
            return web.Response(status=error.status)
        client = web.WebSocketResponse(max_msg_size=0, compress=False)
        await client.prepare(request)
        exchanges: list[tuple[bytes, list[bytes]]] = []

        async def pass_back() -> None:
            async for message in upstream:
                exchanges[-1][1].append(message.data.encode())
                await client.send_str(message.data)

        back = asyncio.ensure_future(pass_back())
        # Codex disconnects without a close.
        with suppress(ConnectionError):
            async for message in client:
                exchanges.append((message.data.encode(), []))
                await upstream.send_str(message.data)
        await upstream.close()
        await asyncio.gather(back, return_exceptions=True)
        for body, events in exchanges:
            decoded = map(msgspec.json.decode, events)
            error_event: dict[str, Any] = next((event for event in decoded if event["type"] == "error"), {})
            own = "x-holdfast-gateway" in error_event.get("headers", {})
            status, response = error_event.get("status", 200), b"\n".join(events)
            self.exchanges.append(
                TappedExchange("WEBSOCKET", request.raw_path, body, status, response, own, tuple(sent))
            )
        return client

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [item for item in request.headers.items() if item[0].lower() not in _CONNECTION_HEADERS]
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._pass_on_messages(request, headers)
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
