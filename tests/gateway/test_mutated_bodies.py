"""Whatever clients send is forwarded byte for byte and is in the report with its usage; `make deep` sends 20,000."""

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from tests.support.fuzzed_bodies import iterate_bodies
from tests.support.served_gateway import serve_gateway

from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.analytics.results import count_unreadable_calls
from holdfast.testing.server_thread import LoopThread

COUNT = int(os.environ.get("HOLDFAST_MUTATED_BODIES", "300"))
UNRECORDED_MAX = 250
INPUT_TOKENS, OUTPUT_TOKENS = 100, 7


class Upstream:
    """Answers every request with the same usage, in the format of its provider."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def respond(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        if "models/" in request.path:
            usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS}
            return web.json_response({"candidates": [], "usageMetadata": usage})
        if request.path.endswith("/chat/completions"):
            return web.json_response({"usage": {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS}})
        return web.json_response({"usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}})


@contextmanager
def serve_upstream(upstream: Upstream) -> Iterator[str]:
    async def start() -> tuple[web.AppRunner, str]:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", upstream.respond)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        return runner, f"http://{host}:{port}"

    with LoopThread() as thread:
        runner, url = thread.run(start())
        try:
            yield url
        finally:
            thread.run(runner.cleanup())


def test_no_mutated_exchange_is_invisible() -> None:
    upstream = Upstream()
    bodies = list(iterate_bodies(seed=25, count=COUNT))
    with serve_upstream(upstream) as url, serve_gateway(url) as gateway:
        connection = http.client.HTTPConnection(*gateway.address, timeout=20)
        for number, (path, body) in enumerate(bodies):
            # The recorder is slower than one client; what it does under load is tested elsewhere.
            if number % UNRECORDED_MAX == 0:
                gateway.recorded_sessions()
            connection.request("POST", path, body, {"content-type": "application/json", "x-api-key": "any"})
            response = connection.getresponse()
            assert (response.status, bool(json.loads(response.read()))) == (200, True)
        connection.close()
        gateway.recorded_sessions()
        queries, scope = gateway.store.cost_queries(), LedgerScope(simulated=True)
        total, unreadable = queries.totals(scope), count_unreadable_calls(queries, scope)
    assert upstream.bodies == [body for _, body in bodies]
    assert (total.calls, unreadable) == (COUNT, 0)
    assert total.usage.tokens_sent == COUNT * INPUT_TOKENS
    assert total.usage.output == COUNT * OUTPUT_TOKENS
