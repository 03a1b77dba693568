"""Which requests the service's router hands to the gateway, and that it alone decides."""

import httpx
import pytest
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.serve.gateway import GatewayMount
from holdfast.gateway.routes import RouteTable, resolve_upstreams
from holdfast.service.app import make_app
from holdfast.service.context import AppContext
from holdfast.service.route_table import ROUTES
from holdfast.stores.memory import MemoryStore

ROUTE_TABLE = RouteTable(resolve_upstreams({}, {}))
FORWARDED = {
    "/anthropic": ("anthropic", "/", None),
    "/anthropic/": ("anthropic", "/", None),
    "/anthropic/v1/messages": ("anthropic", "/v1/messages", "anthropic"),
    "/anthropic/v1/%6Dessages": ("anthropic", "/v1/%6Dessages", "anthropic"),
    "/anthropic//v1/messages": ("anthropic", "//v1/messages", "anthropic"),
    "/openai/v1/files/a%2Fb": ("openai", "/v1/files/a%2Fb", None),
    "/openrouter/api/v1/chat/completions": ("openrouter", "/v1/chat/completions", "openrouter"),
    "/v1/messages": ("anthropic", "/v1/messages", "anthropic"),
    "/v1/responses/compact": ("openai", "/v1/responses/compact", None),
    "/v1beta/models/m:generateContent": ("gemini", "/v1beta/models/m:generateContent", "gemini"),
}
OWN_PATHS = (
    "/",
    "/healthz",
    "/api/cache",
    "/v1/recall",
    "/v1/agents/a1/boot-stub",
    "/anthropics/v1/messages",
    "/%61nthropic/v1/messages",
    "/Anthropic/v1/messages",
    "/v1beta/models/a:b:generateContent",
)


class Recorder:
    """Replaces the gateway: returns the path it was called with."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["raw_path"].decode())
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def app_with(gateway: Recorder) -> httpx.AsyncClient:
    store = MemoryStore()
    mount = GatewayMount(gateway, ROUTE_TABLE)
    app = make_app(AppContext(store, store.records, shipped_models()), ROUTES, mounts=(mount,))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "PROPFIND"])
async def test_provider_paths_reach_the_gateway_with_every_method_and_all_others_never(method: str) -> None:
    gateway = Recorder()
    async with app_with(gateway) as client:
        for path in FORWARDED:
            assert (await client.request(method, path)).status_code == 299, path
        for path in OWN_PATHS:
            assert (await client.request(method, path)).status_code != 299, path
    assert gateway.paths == list(FORWARDED)


def test_a_target_is_the_path_as_sent_below_its_mount() -> None:
    for path, (mount, rest, adapter) in FORWARDED.items():
        target = ROUTE_TABLE.find_target(path)
        assert (target.mount, target.path, target.adapter_name) == (mount, rest, adapter)


async def test_a_path_that_the_gateway_does_not_serve_is_answered_in_our_own_format() -> None:
    async with app_with(Recorder()) as client:
        for path in ("/%61nthropic/v1/messages", "/no-such-path"):
            response = await client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        response = await client.post("/api/cache")
        assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")


def test_only_http_requests_are_matched() -> None:
    mount = GatewayMount(Recorder(), ROUTE_TABLE)
    assert mount.matches({"type": "websocket", "path": "/anthropic/v1/messages"}) == (Match.NONE, {})
    assert mount.matches({"type": "http", "path": "/anthropic/v1/messages"}) == (Match.FULL, {})


@pytest.mark.parametrize(
    "path",
    [
        "/anthropic/v1/messages",
        "/anthropic/v1/messages/",
        "/anthropic//v1///messages//",
        "//anthropic/v1/messages",
        "/anthropic/v1/%6Dessages",
        "/v1/messages/",
        "//v1/messages",
    ],
)
def test_doubled_and_trailing_slashes_do_not_hide_a_model_call(path: str) -> None:
    assert ROUTE_TABLE.find_mount(path) == "anthropic"
    target = ROUTE_TABLE.find_target(path)
    assert target.adapter_name == "anthropic"
    assert path.endswith(target.path)


@pytest.mark.parametrize(
    "path", ["/anthropic/../openai/v1/responses", "/anthropic/%2e%2e/x", "/anthropic/./v1/messages"]
)
def test_a_path_with_dot_steps_is_not_a_providers(path: str) -> None:
    assert ROUTE_TABLE.find_mount(path) is None
