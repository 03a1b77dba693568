"""Gemini's own client, wrapped, against a server that answers with our adapter's encoding, over a real socket."""

import gc
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from google import genai
from google.genai import errors, types
from tests.support.loopback import Server, says, serving
from tests.support.served import TIMEOUT_SECONDS, reply_handler, serve_handlers
from tests.support.simulated_gemini import LONG

from holdfast.clock import ManualClock
from holdfast.events.payloads.cache import CacheSettings, ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.integrations import recorder_of, wrap
from holdfast.providers.gemini import gemini
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.testing.server_thread import serve_provider
from holdfast.types.blocks import Text, ToolUse
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage

FLASH = "gemini-3.8-flash"
SYSTEM = "You read files before you speak of them."
USAGE = Usage(input=30, cache_read=4_096, output=7)
REPLY = Reply((Text("Two words. " * 20),), "end_turn", USAGE, FLASH, "reply-1")
TOOL_CALL_REPLY = Reply((ToolUse("c1", "look_up", '{"word":"prefix"}'),), "tool_use", USAGE, FLASH, "reply-0")
CONFIG = types.GenerateContentConfig(system_instruction=SYSTEM)
ANSWER = reply_handler(gemini, REPLY)


def connect(server: Server) -> genai.Client:
    options = types.HttpOptions(base_url=server.url, timeout=int(TIMEOUT_SECONDS * 1000))
    return wrap(genai.Client(api_key="any", http_options=options))


@pytest.fixture
def server() -> Iterator[Server]:
    with serve_handlers(ANSWER) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[genai.Client]:
    with connect(server) as opened:
        yield opened


def recorded_usage(client: object) -> list[Usage]:
    return [record.usage for record in recorder_of(client).calls]


def failure_classes(client: object) -> list[str]:
    recorder = recorder_of(client)
    payloads = [event.payload for event in recorder.read_events()]
    return [payload.error_class for payload in payloads if isinstance(payload, LlmCallFailed)]


def test_a_call_is_sent_unchanged_and_recorded(server: Server, client: genai.Client) -> None:
    assert isinstance(client, genai.Client)
    reply = client.models.generate_content(model=FLASH, contents="Hello.", config=CONFIG)
    assert reply.text == "Two words. " * 20
    assert reply.usage_metadata is not None
    assert reply.usage_metadata.cached_content_token_count == USAGE.cache_read
    assert recorded_usage(client) == [USAGE]
    record = recorder_of(client).calls[0]
    assert (record.model, record.cost_usd > 0) == (f"gemini:{FLASH}", True)
    body = json.loads(server.bodies[0])
    assert body["contents"] == [{"parts": [{"text": "Hello."}], "role": "user"}]
    assert body["systemInstruction"]["parts"] == [{"text": SYSTEM}]


def test_the_given_client_stays_usable_after_the_wrapped_one_is_collected(server: Server) -> None:
    options = types.HttpOptions(base_url=server.url, timeout=int(TIMEOUT_SECONDS * 1000))
    with genai.Client(api_key="any", http_options=options) as bare:
        client = wrap(bare)
        client.models.generate_content(model=FLASH, contents="Hello.")
        del client
        gc.collect()
        assert bare.models.generate_content(model=FLASH, contents="Hello.").text


def test_a_stream_is_passed_through_and_recorded(client: genai.Client) -> None:
    chunks = list(client.models.generate_content_stream(model=FLASH, contents="Hello.", config=CONFIG))
    assert len(chunks) > 1
    assert "".join(chunk.text or "" for chunk in chunks) == "Two words. " * 20
    assert recorded_usage(client) == [USAGE]


def test_a_stream_that_is_closed_early_is_a_cancelled_call(client: genai.Client) -> None:
    stream: Any = client.models.generate_content_stream(model=FLASH, contents="Hello.")
    next(stream)
    stream.close()
    # The provider has charged for what it had generated, and has not said how much.
    (estimate,) = recorded_usage(client)
    assert estimate.tokens_sent > 0
    assert estimate.output > 0
    assert failure_classes(client) == ["cancelled"]


def test_a_chat_is_recorded_with_an_unchanged_prefix(client: genai.Client) -> None:
    chat = client.chats.create(model=FLASH, config=CONFIG)
    chat.send_message("Hello.")
    chat.send_message("Go on.")
    records = recorder_of(client).calls
    assert [record.usage for record in records] == [USAGE, USAGE]
    assert [(record.is_prefix_unchanged, record.blocks_before) for record in records] == [(True, 0), (True, 2)]


def test_every_request_of_automatic_function_calling_is_recorded() -> None:
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"{word}: what comes before."

    with serve_handlers(reply_handler(gemini, TOOL_CALL_REPLY), ANSWER) as server, connect(server) as client:
        config = types.GenerateContentConfig(tools=[look_up])
        reply = client.models.generate_content(model=FLASH, contents="What is a prefix?", config=config)
        assert reply.text == "Two words. " * 20
        assert recorded_usage(client) == [USAGE, USAGE]


def test_other_methods_pass_through_without_a_record() -> None:
    counting = says('{"totalTokens": 3}', headers={"content-type": "application/json"})
    with serve_handlers(counting) as server, connect(server) as client:
        assert client.models.count_tokens(model=FLASH, contents="Hello.").total_tokens == 3
        recorder = recorder_of(client)
        assert list(recorder.read_events()) == []


def test_the_clients_errors_are_raised_unchanged_and_recorded() -> None:
    body = gemini.encode_error("rate_limit", "slow down")[1].decode()
    refusing = says(body, status=429, headers={"content-type": "application/json"})
    with serve_handlers(refusing) as server, connect(server) as client:
        with pytest.raises(errors.ClientError):
            client.models.generate_content(model=FLASH, contents="Hello.")
        with pytest.raises(errors.ClientError):
            list(client.models.generate_content_stream(model=FLASH, contents="Hello."))
        assert failure_classes(client) == ["rate_limit", "rate_limit"]


def test_an_unknown_model_is_recorded_without_a_price(client: genai.Client, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        client.models.generate_content(model="gemini-99", contents="Hello.")
    assert [record.cost_usd for record in recorder_of(client).calls] == [0, 0]
    assert len([record for record in caplog.records if record.name == "holdfast.integrations"]) == 1


@pytest_asyncio.fixture
async def async_client() -> AsyncIterator[genai.Client]:
    async with serving(ANSWER) as server:
        client = connect(server)
        yield client
        await client.aio.aclose()
        client.close()


async def test_asynchronous_calls_are_recorded_too(async_client: genai.Client) -> None:
    reply = await async_client.aio.models.generate_content(model=FLASH, contents="Hello.", config=CONFIG)
    assert reply.text == "Two words. " * 20
    stream = await async_client.aio.models.generate_content_stream(model=FLASH, contents="Hello.", config=CONFIG)
    assert "".join([chunk.text or "" async for chunk in stream]) == "Two words. " * 20
    chat = async_client.aio.chats.create(model=FLASH, config=CONFIG)
    await chat.send_message("Hello.")
    assert recorded_usage(async_client) == [USAGE] * 3


async def test_errors_of_asynchronous_calls_are_raised_unchanged_and_recorded() -> None:
    body = gemini.encode_error("server_error", "down")[1].decode()
    async with serving(says(body, status=500, headers={"content-type": "application/json"})) as server:
        client = connect(server)
        with pytest.raises(errors.ServerError):
            await client.aio.models.generate_content(model=FLASH, contents="Hello.")
        with pytest.raises(errors.ServerError):
            [chunk async for chunk in await client.aio.models.generate_content_stream(model=FLASH, contents="Hello.")]
        assert failure_classes(client) == ["server_error", "server_error"]
        await client.aio.aclose()
        client.close()


class PausedChat:
    """A wrapped client of the simulator, whose calls are further apart than the implicit cache lasts."""

    def __init__(self, url: str, provider: SimulatedProvider, clock: ManualClock) -> None:
        self.provider, self.clock, self.store = provider, clock, MemoryStore()
        options = types.HttpOptions(base_url=url, timeout=int(TIMEOUT_SECONDS * 1000))
        bare = genai.Client(api_key="key", http_options=options)
        self.client = wrap(bare, store=self.store, clock=clock)
        self.contents: list[Any] = []

    def question(self) -> dict[str, Any]:
        self.clock.advance(600)
        self.contents.append({"role": "user", "parts": [{"text": f"Question {len(self.contents)}."}]})
        return {"model": FLASH, "contents": self.contents, "config": {"system_instruction": LONG}}

    def add(self, text: str | None) -> None:
        assert text
        self.contents.append({"role": "model", "parts": [{"text": text}]})

    def ask(self, *, times: int = 1) -> None:
        for _ in range(times):
            self.add(self.client.models.generate_content(**self.question()).text)

    def stream(self) -> None:
        chunks = self.client.models.generate_content_stream(**self.question())
        self.add("".join(chunk.text or "" for chunk in chunks))

    async def ask_async(self) -> None:
        self.add((await self.client.aio.models.generate_content(**self.question())).text)

    async def stream_async(self) -> None:
        chunks = await self.client.aio.models.generate_content_stream(**self.question())
        self.add("".join([chunk.text or "" async for chunk in chunks]))

    def sent(self, path: str = "enerateContent") -> list[tuple[int, bool]]:
        """Status of each request, and whether it refers to an explicit cache."""
        requests = [request for request in self.provider.requests if path in request.path]
        return [(request.status, b'"cachedContent":"' in request.body) for request in requests]

    def actions(self) -> list[str]:
        payloads = [event.payload for event in recorder_of(self.client).read_events()]
        return [payload.action for payload in payloads if isinstance(payload, ExplicitCacheChanged)]

    def lose_cache(self) -> None:
        (cache,) = self.provider.explicit_caches
        self.provider.handle("DELETE", f"/v1beta/{cache.name}", headers={"x-goog-api-key": "key"}, body=b"")


@pytest.fixture
def chat() -> Iterator[PausedChat]:
    clock = ManualClock(1_790_000_000.0)
    provider = SimulatedProvider(clock=clock)
    with serve_provider(provider) as url:
        yield PausedChat(url, provider, clock)


def test_an_explicit_cache_is_created_used_and_recorded_where_reads_were_missed(chat: PausedChat) -> None:
    chat.ask(times=3)
    chat.stream()
    assert chat.sent() == [(200, False), (200, False), (200, True), (200, True)]
    assert chat.sent("/cachedContents") == [(200, False)]
    assert chat.actions() == ["created"]
    assert [usage.cache_read > 4_096 for usage in recorded_usage(chat.client)] == [False, False, True, True]


def test_a_lost_cache_is_not_noticed_by_the_caller(chat: PausedChat) -> None:
    chat.ask(times=3)
    chat.lose_cache()
    chat.stream()
    chat.ask()
    sent = [(200, False), (200, False), (200, True), (403, True), (200, False), (200, True)]
    assert chat.sent() == sent
    assert chat.actions() == ["created", "lost", "created"]


def test_caching_turned_off_deletes_the_explicit_cache(chat: PausedChat) -> None:
    chat.ask(times=3)
    chat.store.records.set_settings(CacheSettings(providers={"gemini": False}))
    chat.ask(times=2)
    assert chat.sent() == [(200, False), (200, False), (200, True), (200, False), (200, False)]
    assert chat.provider.explicit_caches == ()
    assert chat.actions() == ["created", "deleted"]


async def test_asynchronous_calls_use_an_explicit_cache_too() -> None:
    clock = ManualClock(1_790_000_000.0)
    provider = SimulatedProvider(clock=clock)
    with serve_provider(provider) as url:
        chat = PausedChat(url, provider, clock)
        for _ in range(2):
            await chat.ask_async()
        await chat.stream_async()
        chat.lose_cache()
        await chat.stream_async()
        await chat.client.aio.aclose()
        assert chat.sent() == [(200, False), (200, False), (200, True), (403, True), (200, False)]
        assert chat.actions() == ["created", "lost"]
