"""The simulator on a port: its endpoints, its controls, and its handling of other requests."""

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from tests.support.simulated import CACHE_CONTROL, LONG, SONNET, Wire, request, text, user

from holdfast.clock import ManualClock
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.anthropic import anthropic
from holdfast.providers.registry import get_provider
from holdfast.providers.wire_request import Transport as WireProtocol
from holdfast.simulator.provider import SimulatedProvider, SimulatedTransport
from holdfast.simulator.script import parse_script
from holdfast.simulator.server import RunningSimulator, serve_simulator

KEY = {"x-api-key": "sk-secret"}
ASK = request(user(text("Ask.", CACHE_CONTROL)), system=LONG)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningSimulator]:
    running = await serve_simulator(SimulatedProvider(clock=ManualClock(1_000)))
    yield running
    await running.aclose()


@pytest_asyncio.fixture
async def client(server: RunningSimulator) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(server.url, headers=KEY, timeout=timeout) as session:
        yield session


Body = Wire | bytes | io.BytesIO | None


async def call(client: aiohttp.ClientSession, method: str, path: str, body: Body = None) -> tuple[int, Wire]:
    raw = msgspec.json.encode(body) if isinstance(body, dict) else body
    async with client.request(method, path, data=raw) as response:
        assert response.content_type == "application/json"
        return response.status, msgspec.json.decode(await response.read())


async def test_a_simulator_prints_its_address(server: RunningSimulator) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert int(server.url.rsplit(":", 1)[1]) > 0


async def test_a_message_is_answered_with_the_request_number_in_its_headers(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/messages", data=msgspec.json.encode(ASK)) as response:
        assert response.status == 200
        assert response.headers["request-id"] == "req_sim-000001"
        assert (await response.json())["content"][0]["text"] == "Echo: Ask."


async def test_a_stream_comes_as_server_sent_events(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/messages", data=msgspec.json.encode({**ASK, "stream": True})) as response:
        assert response.content_type == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        events = (await response.read()).split(b"\n\n")
    assert events[0].startswith(b"event: message_start\ndata: {")
    assert events[-2:] == [b'event: message_stop\ndata: {"type":"message_stop"}', b""]


async def test_advancing_the_clock_lets_entries_expire(client: aiohttp.ClientSession) -> None:
    await call(client, "POST", "/v1/messages", ASK)
    assert await call(client, "POST", "/_sim/clock", {"advance_seconds": 299.5}) == (200, {"now": 1_299.5})
    assert len((await call(client, "GET", "/_sim/cache"))[1]["entries"]) == 1
    assert await call(client, "POST", "/_sim/clock", {"advance_seconds": 1}) == (200, {"now": 1_300.5})
    assert (await call(client, "GET", "/_sim/cache"))[1]["entries"] == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{}", b"5", b'{"advance_seconds": "5"}', b'{"advance_seconds": -1}', b'{"seconds": 5}', b"\xff"],
)
async def test_the_clock_accepts_only_seconds(client: aiohttp.ClientSession, body: bytes) -> None:
    status, reply = await call(client, "POST", "/_sim/clock", body)
    assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
    assert reply["error"]["message"].endswith('; send {"advance_seconds": 300}')


async def test_the_cache_shows_its_entries(client: aiohttp.ClientSession) -> None:
    _, reply = await call(client, "POST", "/v1/messages", ASK)
    _, listing = await call(client, "GET", "/_sim/cache")
    (entry,) = listing["entries"]
    assert listing["now"] == 1_000
    assert (entry["ttl"], entry["expires_at"], entry["scope"]["model"]) == ("5m", 1_300, SONNET)
    assert entry["tokens"] == reply["usage"]["cache_creation_input_tokens"]


async def test_the_requests_show_their_exact_bodies_and_no_key(client: aiohttp.ClientSession) -> None:
    raw = b'{ "model": "none",\n "max_tokens": 1, "messages": [] }'
    await call(client, "POST", "/v1/messages", raw)
    await call(client, "GET", "/v1/models")
    _, listing = await call(client, "GET", "/_sim/requests")
    assert listing == {
        "requests": [
            {"at": 1_000, "method": "POST", "path": "/v1/messages", "status": 404, "body": raw.decode()},
            {"at": 1_000, "method": "GET", "path": "/v1/models", "status": 200, "body": ""},
        ]
    }


async def test_a_body_that_is_not_utf8_is_shown_as_far_as_possible(client: aiohttp.ClientSession) -> None:
    await call(client, "POST", "/v1/messages", b"{\xff}")
    _, listing = await call(client, "GET", "/_sim/requests")
    assert listing["requests"][0]["body"] == "{\ufffd}"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/_sim/clock"), ("GET", "/_sim/"), ("POST", "/_sim/cache"), ("GET", "/"), ("PUT", "/x")],
)
async def test_an_unknown_path_is_not_found(client: aiohttp.ClientSession, method: str, path: str) -> None:
    status, reply = await call(client, method, path)
    assert (status, reply["type"], reply["error"]["type"]) == (404, "error", "not_found_error")
    assert ("/_sim/clock" in reply["error"]["message"]) == path.startswith("/_sim/")


async def test_models_are_listed_as_the_query_says(client: aiohttp.ClientSession) -> None:
    _, page = await call(client, "GET", "/v1/models?limit=2")
    assert len(page["data"]) == 2


async def test_a_body_beyond_the_limit_is_refused(client: aiohttp.ClientSession) -> None:
    status, reply = await call(client, "POST", "/v1/messages", io.BytesIO(b" " * (32 * 1024 * 1024 + 1)))
    assert (status, reply["error"]["type"]) == (413, "request_too_large")


async def test_a_client_that_disconnects_during_its_request_is_not_logged(
    server: RunningSimulator, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(server.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    for disconnected in (False, True):
        if disconnected:
            writer.transport.abort()
        # All earlier requests were handled by the time this one is answered.
        async with client.get("/_sim/cache") as response:
            assert response.status == 200
    assert caplog.records == []


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on port {port} of 127\.0\.0\.1.*0 for a free one"):
            await serve_simulator(SimulatedProvider(), port=port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no.such.host.invalid", 0)])
async def test_an_address_that_cannot_be_bound_is_named(host: str, port: int) -> None:
    with pytest.raises(UserError, match=f"cannot listen on port {port} of {host}"):
        await serve_simulator(SimulatedProvider(), host=host, port=port)


async def test_a_closed_simulator_does_not_answer(client: aiohttp.ClientSession, server: RunningSimulator) -> None:
    await server.aclose()
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.get("/v1/models")


async def test_a_client_that_disconnects_early_affects_no_other(client: aiohttp.ClientSession) -> None:
    long = {**request(user("word " * 80)), "stream": True}
    response = await client.post("/v1/messages", data=msgspec.json.encode(long))
    response.close()
    assert (await call(client, "GET", "/v1/models"))[0] == 200


# Without a socket


def transport_of(script: str = "") -> SimulatedTransport:
    return SimulatedProvider(clock=ManualClock(), script=parse_script(script)).create_transport()


ANTHROPIC = get_provider("anthropic")
ENDPOINT = Endpoint("/v1/messages", (("content-type", "application/json"), ("anthropic-version", "2026-10-21")))


async def test_a_transport_yields_the_bytes_of_the_response() -> None:
    simulated: WireProtocol = transport_of()
    body = msgspec.json.encode({**ASK, "stream": True})
    chunks = [chunk async for chunk in simulated.send(ENDPOINT, body)]
    reader = anthropic.make_stream_decoder()
    deltas = [delta for chunk in chunks for delta in reader.feed(chunk)]
    assert len(chunks) > 1
    assert deltas[-1].reply.content[0].text == "Echo: Ask."  # type: ignore[union-attr]  # the last one is the reply


async def test_a_transport_sends_the_headers_of_its_endpoint() -> None:
    endpoint = Endpoint("/v1/messages", (("x-holdfast-fault", "529;retry-after=2"),))
    with pytest.raises(ProviderError) as error:
        [chunk async for chunk in transport_of().send(endpoint, msgspec.json.encode(ASK))]
    assert (error.value.kind, error.value.status, error.value.retry_after_seconds) == ("rate_limit", 529, 2.0)


async def test_a_transport_has_its_own_workspace() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    for key in ("a", "b", "a"):
        body = msgspec.json.encode(ASK)
        (reply,) = [chunk async for chunk in SimulatedTransport(provider, ANTHROPIC, api_key=key).send(ENDPOINT, body)]
    assert anthropic.decode_reply(reply).usage.cache_read > 0
    assert len(provider.cache) == 2


async def test_a_closed_transport_sends_nothing() -> None:
    simulated = transport_of()
    await simulated.aclose()
    with pytest.raises(ProviderError, match="closed"):
        [chunk async for chunk in simulated.send(ENDPOINT, b"{}")]


async def test_without_a_socket_a_query_is_split_from_its_path() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    transport_of = provider.create_transport(provider="anthropic")
    endpoint = Endpoint("/v1/models?limit=2", (("anthropic-version", "2026-10-21"),), "GET")
    body = b"".join([chunk async for chunk in transport_of.send(endpoint, b"")])
    assert len(msgspec.json.decode(body)["data"]) == 2


async def test_a_head_request_gets_no_body_and_the_connection_stays_usable(server: RunningSimulator) -> None:
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(2):
        writer.write(b"HEAD / HTTP/1.1\r\nhost: simulator\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()
