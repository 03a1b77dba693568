"""Google's own client against the simulator, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import aiohttp
import pytest
import pytest_asyncio
from google import genai
from google.genai import errors, types
from tests.support.simulated_gemini import FLASH, LONG

from holdfast.clock import ManualClock
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import RunningSimulator, serve_simulator

TIMEOUT_MILLISECONDS = 10_000
SCRIPT = "\n".join(
    [
        '{"content": [{"type": "thinking", "thinking": "A file."}, {"type": "text", "text": "I look."},'
        ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}',
        '{"content": "It is there."}',
    ]
)
READ = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="read", description="Reads.", parameters_json_schema={"type": "object", "properties": {}}
        )
    ]
)
CONFIG = types.GenerateContentConfig(
    system_instruction=LONG,
    tools=[READ],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)

Found = TypeVar("Found")


@pytest.fixture
def provider() -> SimulatedProvider:
    return SimulatedProvider(clock=ManualClock(), script=SCRIPT)


@pytest_asyncio.fixture
async def server(provider: SimulatedProvider) -> AsyncIterator[RunningSimulator]:
    running = await serve_simulator(provider)
    yield running
    await running.aclose()


@pytest.fixture
def client(server: RunningSimulator) -> Iterator[genai.Client]:
    options = types.HttpOptions(base_url=server.url, timeout=TIMEOUT_MILLISECONDS)
    opened = genai.Client(api_key="any", http_options=options)
    yield opened
    opened.close()


@pytest_asyncio.fixture
async def aio(client: genai.Client) -> AsyncIterator[Any]:
    yield client.aio
    await client.aio.aclose()


async def apart(act: Callable[[], Found]) -> Found:
    """What the client that waits finds, while the simulator answers beside it."""
    return await asyncio.to_thread(act)


def _cached(reply: types.GenerateContentResponse) -> tuple[int, int]:
    usage = reply.usage_metadata
    assert usage is not None
    return usage.prompt_token_count or 0, usage.cached_content_token_count or 0


def _content(reply: types.GenerateContentResponse) -> types.Content:
    assert reply.candidates
    content = reply.candidates[0].content
    assert content is not None
    return content


async def test_a_tool_loop_with_its_thoughts_reads_what_was_sent_before(aio: Any) -> None:
    said: list[Any] = [types.Content(role="user", parts=[types.Part(text="Look.")])]
    first = await aio.models.generate_content(model=FLASH, contents=said, config=CONFIG)
    thought, words, call = _content(first).parts or []
    assert (thought.thought, words.text, bool(words.thought_signature)) == (True, "I look.", True)
    assert call.function_call is not None
    assert call.function_call.args == {"path": "a.txt"}
    answered = types.FunctionResponse(id=call.function_call.id, name="read", response={"result": "text"})
    said += [_content(first), types.Content(role="user", parts=[types.Part(function_response=answered)])]
    second = await aio.models.generate_content(model=FLASH, contents=said, config=CONFIG)
    assert second.text == "It is there."
    assert _cached(second)[1] == _cached(first)[0]


async def test_the_client_that_waits_asks_and_streams(client: genai.Client) -> None:
    whole = await apart(lambda: client.models.generate_content(model=FLASH, contents="Look.", config=CONFIG))
    assert [call.name for call in whole.function_calls or []] == ["read"]
    chunks = await apart(
        lambda: list(client.models.generate_content_stream(model=FLASH, contents="Look.", config=CONFIG))
    )
    words = [part.text for chunk in chunks for part in _content(chunk).parts or [] if part.text and not part.thought]
    assert "".join(words) == "I look."
    assert _cached(chunks[-1])[1] == _cached(whole)[0] > 4_096


async def test_a_stream_and_a_chat_that_goes_on_behind_it(aio: Any) -> None:
    chat = aio.chats.create(model=FLASH, config=CONFIG)
    chunks = [chunk async for chunk in await chat.send_message_stream("Look.")]
    calls = [call for chunk in chunks for call in chunk.function_calls or []]
    assert [call.name for call in calls] == ["read"]
    answered = types.Part(
        function_response=types.FunctionResponse(id=calls[0].id, name="read", response={"result": "text"})
    )
    reply = await chat.send_message(answered)
    assert reply.text == "It is there."
    assert _cached(reply)[1] == _cached(chunks[-1])[0]


async def test_tokens_are_counted_and_models_listed(client: genai.Client, aio: Any) -> None:
    assert (await aio.models.count_tokens(model=FLASH, contents=LONG)).total_tokens > 4_096
    assert (await apart(lambda: client.models.count_tokens(model=FLASH, contents="Hi."))).total_tokens
    listed = [model.name async for model in await aio.models.list(config={"page_size": 2})]
    assert f"models/{FLASH}" in listed
    assert len(listed) == len(set(listed)) > 2
    assert (await aio.models.get(model=FLASH)).input_token_limit == 1_048_576


async def test_a_cache_is_made_used_kept_for_longer_and_deleted(client: genai.Client, aio: Any) -> None:
    wanted = types.CreateCachedContentConfig(system_instruction=LONG, tools=[READ], ttl="300s", display_name="mine")
    made = await aio.caches.create(model=FLASH, config=wanted)
    tokens = made.usage_metadata.total_token_count
    config = types.GenerateContentConfig(cached_content=made.name)
    reply = await aio.models.generate_content(model=FLASH, contents="Look.", config=config)
    assert (reply.function_calls[0].name, _cached(reply)[1]) == ("read", tokens)
    chunks = [
        chunk async for chunk in await aio.models.generate_content_stream(model=FLASH, contents="Look.", config=config)
    ]
    assert _cached(chunks[-1]) == _cached(reply)
    assert (await aio.caches.get(name=made.name)).display_name == "mine"
    longer = await aio.caches.update(name=made.name, config=types.UpdateCachedContentConfig(ttl="600s"))
    assert (longer.expire_time - made.expire_time).total_seconds() == 300
    assert [cache.name async for cache in await aio.caches.list(config={"page_size": 1})] == [made.name]
    assert [cache.name for cache in await apart(lambda: list(client.caches.list()))] == [made.name]
    await aio.caches.delete(name=made.name)
    with pytest.raises(errors.ClientError, match="CachedContent not found") as gone:
        await aio.caches.get(name=made.name)
    assert (gone.value.code, gone.value.status) == (403, "PERMISSION_DENIED")


async def test_a_cache_that_has_lapsed_is_refused(aio: Any, provider: SimulatedProvider) -> None:
    made = await aio.caches.create(model=FLASH, config={"system_instruction": LONG, "ttl": "300s"})
    provider.advance(300)
    with pytest.raises(errors.ClientError, match="CachedContent not found") as gone:
        await aio.models.generate_content(model=FLASH, contents="Look.", config={"cached_content": made.name})
    assert gone.value.code == 403


async def test_refusals_arrive_with_their_status(aio: Any) -> None:
    made = await aio.caches.create(model=FLASH, config={"system_instruction": LONG})
    beside = {"cached_content": made.name, "system_instruction": "Be brief."}
    with pytest.raises(errors.ClientError, match="CachedContent can not be used with GenerateContent") as refused:
        await aio.models.generate_content(model=FLASH, contents="Look.", config=beside)
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    with pytest.raises(errors.ClientError, match="too small"):
        await aio.caches.create(model=FLASH, config={"system_instruction": "Be brief."})
    with pytest.raises(errors.ClientError, match="not found") as unknown:
        await aio.models.generate_content(model="gemini-none", contents="Look.")
    assert unknown.value.code == 404


async def test_the_caches_can_be_looked_at(client: genai.Client, server: RunningSimulator) -> None:
    made = await apart(lambda: client.caches.create(model=FLASH, config={"system_instruction": LONG}))
    async with aiohttp.ClientSession(server.url) as session, session.get("/_sim/cache") as response:
        shown = json.loads(await response.text())
    assert [cache["name"] for cache in shown["explicit_caches"]] == [made.name]
    assert shown["entries"] == []
