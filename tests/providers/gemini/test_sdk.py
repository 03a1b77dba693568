"""Google's official client against the simulator, over a real socket."""

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

Result = TypeVar("Result")


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
    sdk_client = genai.Client(api_key="any", http_options=options)
    yield sdk_client
    sdk_client.close()


@pytest_asyncio.fixture
async def aio(client: genai.Client) -> AsyncIterator[Any]:
    yield client.aio
    await client.aio.aclose()


async def run_in_thread(act: Callable[[], Result]) -> Result:
    """The result of a blocking client call, made in a thread while the simulator serves it on this event loop."""
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


async def test_a_tool_loop_with_thoughts_reads_the_earlier_requests_from_the_cache(aio: Any) -> None:
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text="Look.")])]
    first = await aio.models.generate_content(model=FLASH, contents=contents, config=CONFIG)
    thought, words, call = _content(first).parts or []
    assert (thought.thought, words.text, bool(words.thought_signature)) == (True, "I look.", True)
    assert call.function_call is not None
    assert call.function_call.args == {"path": "a.txt"}
    tool_response = types.FunctionResponse(id=call.function_call.id, name="read", response={"result": "text"})
    contents += [_content(first), types.Content(role="user", parts=[types.Part(function_response=tool_response)])]
    second = await aio.models.generate_content(model=FLASH, contents=contents, config=CONFIG)
    assert second.text == "It is there."
    assert _cached(second)[1] == _cached(first)[0]


async def test_the_blocking_client_requests_and_streams(client: genai.Client) -> None:
    reply = await run_in_thread(lambda: client.models.generate_content(model=FLASH, contents="Look.", config=CONFIG))
    assert [call.name for call in reply.function_calls or []] == ["read"]
    chunks = await run_in_thread(
        lambda: list(client.models.generate_content_stream(model=FLASH, contents="Look.", config=CONFIG))
    )
    words = [part.text for chunk in chunks for part in _content(chunk).parts or [] if part.text and not part.thought]
    assert "".join(words) == "I look."
    assert _cached(chunks[-1])[1] == _cached(reply)[0] > 4_096


async def test_a_chat_continues_after_a_stream(aio: Any) -> None:
    chat = aio.chats.create(model=FLASH, config=CONFIG)
    chunks = [chunk async for chunk in await chat.send_message_stream("Look.")]
    calls = [call for chunk in chunks for call in chunk.function_calls or []]
    assert [call.name for call in calls] == ["read"]
    tool_response = types.Part(
        function_response=types.FunctionResponse(id=calls[0].id, name="read", response={"result": "text"})
    )
    reply = await chat.send_message(tool_response)
    assert reply.text == "It is there."
    assert _cached(reply)[1] == _cached(chunks[-1])[0]


async def test_tokens_are_counted_and_models_listed(client: genai.Client, aio: Any) -> None:
    assert (await aio.models.count_tokens(model=FLASH, contents=LONG)).total_tokens > 4_096
    assert (await run_in_thread(lambda: client.models.count_tokens(model=FLASH, contents="Hi."))).total_tokens
    listed = [model.name async for model in await aio.models.list(config={"page_size": 2})]
    assert f"models/{FLASH}" in listed
    assert len(listed) == len(set(listed)) > 2
    assert (await aio.models.get(model=FLASH)).input_token_limit == 1_048_576


async def test_a_cache_is_created_used_extended_and_deleted(client: genai.Client, aio: Any) -> None:
    cache_config = types.CreateCachedContentConfig(
        system_instruction=LONG, tools=[READ], ttl="300s", display_name="mine"
    )
    created = await aio.caches.create(model=FLASH, config=cache_config)
    tokens = created.usage_metadata.total_token_count
    config = types.GenerateContentConfig(cached_content=created.name)
    reply = await aio.models.generate_content(model=FLASH, contents="Look.", config=config)
    assert (reply.function_calls[0].name, _cached(reply)[1]) == ("read", tokens)
    chunks = [
        chunk async for chunk in await aio.models.generate_content_stream(model=FLASH, contents="Look.", config=config)
    ]
    assert _cached(chunks[-1]) == _cached(reply)
    assert (await aio.caches.get(name=created.name)).display_name == "mine"
    longer = await aio.caches.update(name=created.name, config=types.UpdateCachedContentConfig(ttl="600s"))
    assert (longer.expire_time - created.expire_time).total_seconds() == 300
    assert [cache.name async for cache in await aio.caches.list(config={"page_size": 1})] == [created.name]
    assert [cache.name for cache in await run_in_thread(lambda: list(client.caches.list()))] == [created.name]
    await aio.caches.delete(name=created.name)
    with pytest.raises(errors.ClientError, match="CachedContent not found") as error:
        await aio.caches.get(name=created.name)
    assert (error.value.code, error.value.status) == (403, "PERMISSION_DENIED")


async def test_an_expired_cache_is_refused(aio: Any, provider: SimulatedProvider) -> None:
    created = await aio.caches.create(model=FLASH, config={"system_instruction": LONG, "ttl": "300s"})
    provider.advance(300)
    with pytest.raises(errors.ClientError, match="CachedContent not found") as error:
        await aio.models.generate_content(model=FLASH, contents="Look.", config={"cached_content": created.name})
    assert error.value.code == 403


async def test_refusals_arrive_with_their_status(aio: Any) -> None:
    created = await aio.caches.create(model=FLASH, config={"system_instruction": LONG})
    conflicting_config = {"cached_content": created.name, "system_instruction": "Be brief."}
    with pytest.raises(errors.ClientError, match="CachedContent can not be used with GenerateContent") as refused:
        await aio.models.generate_content(model=FLASH, contents="Look.", config=conflicting_config)
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    with pytest.raises(errors.ClientError, match="too small"):
        await aio.caches.create(model=FLASH, config={"system_instruction": "Be brief."})
    with pytest.raises(errors.ClientError, match="not found") as unknown:
        await aio.models.generate_content(model="gemini-none", contents="Look.")
    assert unknown.value.code == 404


async def test_caches_can_be_inspected(client: genai.Client, server: RunningSimulator) -> None:
    created = await run_in_thread(lambda: client.caches.create(model=FLASH, config={"system_instruction": LONG}))
    async with aiohttp.ClientSession(server.url) as session, session.get("/_sim/cache") as response:
        listing = json.loads(await response.text())
    assert [cache["name"] for cache in listing["explicit_caches"]] == [created.name]
    assert listing["entries"] == []
