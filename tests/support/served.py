"""Providers on a real port for blocking clients: the simulator, and one with scripted responses."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
from aiohttp import web
from tests.support.loopback import RequestHandler, Server, serving

from holdfast.providers.adapter import Adapter
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import Script
from holdfast.testing.server_thread import LoopThread, serve_provider
from holdfast.types.reply import Reply

TIMEOUT_SECONDS = 5.0


class SimulatorServer:
    """A simulator in its own thread."""

    def __init__(self, script: Script) -> None:
        self._serving = serve_provider(SimulatedProvider(script=script))

    def __enter__(self) -> "SimulatorServer":
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._serving.__exit__(None, None, None)

    def client(self, **options: Any) -> anthropic.Anthropic:
        defaults = {"base_url": self.url, "api_key": "any", "timeout": TIMEOUT_SECONDS, "max_retries": 0}
        return anthropic.Anthropic(**{**defaults, **options})

    def bodies(self) -> list[dict[str, Any]]:
        """The posted bodies, oldest first."""
        with urllib.request.urlopen(f"{self.url}/_sim/requests", timeout=TIMEOUT_SECONDS) as response:
            requests = json.load(response)["requests"]
        return [json.loads(request["body"]) for request in requests if request["method"] == "POST"]

    def advance(self, seconds: float) -> None:
        body = json.dumps({"advance_seconds": seconds}).encode()
        with urllib.request.urlopen(f"{self.url}/_sim/clock", data=body, timeout=TIMEOUT_SECONDS) as response:
            assert response.status == 200


@contextmanager
def serve_handlers(*answers: RequestHandler) -> Iterator[Server]:
    """A provider in its own thread that uses one handler per request, and the last one for all later requests."""
    with LoopThread() as thread:
        server = serving(*answers)
        try:
            yield thread.run(_enter(server))
        finally:
            thread.run(_exit(server))


async def _enter(server: Any) -> Server:
    entered: Server = await server.__aenter__()
    return entered


async def _exit(server: Any) -> None:
    await server.__aexit__(None, None, None)


def reply_handler(adapter: Adapter, reply: Reply) -> RequestHandler:
    """The reply in the provider's format: as a whole, or as a stream if requested."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if not body.get("stream") and "streamGenerateContent" not in request.path:
            return web.Response(body=adapter.encode_reply(reply), content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in adapter.encode_stream(reply):
            if _is_wanted(chunk, body):
                await response.write(chunk)
        return response

    return answer


def _is_wanted(chunk: bytes, body: dict[str, Any]) -> bool:
    """Chat completions report usage in a stream only on request."""
    include_usage = (body.get("stream_options") or {}).get("include_usage")
    return bool(include_usage) or b'"chat.completion.chunk"' not in chunk or b'"choices":[]' not in chunk
