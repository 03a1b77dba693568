"""The official clients of OpenAI and OpenRouter against the simulator, over a real socket."""

import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openrouter import OpenRouter
from openrouter.errors import NotFoundResponseError
from tests.support.simulated_openai import LONG, SOL

from holdfast.clock import ManualClock
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import RunningSimulator, serve_simulator

TIMEOUT_SECONDS = 5.0
SCRIPT = "\n".join(
    [
        '{"content": [{"type": "thinking", "thinking": "A file."}, {"type": "text", "text": "I look."},'
        ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}',
        '{"content": "It is there."}',
    ]
)
PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "read", "description": "", "parameters": PARAMETERS}}
]
HELLO: list[ChatCompletionMessageParam] = [
    {"role": "developer", "content": LONG},
    {"role": "user", "content": "Look."},
]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningSimulator]:
    running = await serve_simulator(SimulatedProvider(clock=ManualClock(1_000), script=SCRIPT))
    yield running
    await running.aclose()


@pytest_asyncio.fixture
async def client(server: RunningSimulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0
    ) as sdk_client:
        yield sdk_client


async def test_a_tool_loop_in_chat_completions(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(model=SOL, messages=HELLO, tools=TOOLS)
    message = first.choices[0].message
    assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "I look.")
    assert message.tool_calls
    call: Any = message.tool_calls[0]
    assert call.function.arguments == '{"path":"a.txt"}'
    messages: list[Any] = [*HELLO, message, {"role": "tool", "tool_call_id": call.id, "content": "text"}]
    second = await client.chat.completions.create(model=SOL, messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "It is there."
    assert first.usage
    assert second.usage
    assert second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens


async def test_a_stream_of_chat_completions(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=SOL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "I look."
    assert chunks[-1].usage
    assert chunks[-1].usage.prompt_tokens > 1_024


async def test_a_tool_loop_in_responses_with_its_reasoning(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "name": "read", "description": "", "parameters": PARAMETERS, "strict": False}]
    items: list[Any] = [{"role": "developer", "content": LONG}, {"role": "user", "content": "Look."}]
    first = await client.responses.create(model=SOL, input=items, tools=tools, store=False)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert first.output_text == "I look."
    call: Any = first.output[2]
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "text"}]
    second = await client.responses.create(model=SOL, input=items, tools=tools, store=False)
    assert second.output_text == "It is there."
    assert first.usage
    assert second.usage
    assert second.usage.input_tokens_details.cached_tokens == first.usage.input_tokens


async def test_a_stream_of_responses(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model=SOL, input="Look.") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == "I look."


async def test_tokens_are_counted_and_models_listed(client: openai.AsyncOpenAI) -> None:
    token_count = await client.responses.input_tokens.count(model=SOL, input=LONG)
    assert token_count.input_tokens > 1_024
    assert SOL in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve(SOL)).id == SOL


async def test_refusals_arrive_as_their_types(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="gpt-none", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="prompt_cache_retention"):
        await client.responses.create(model=SOL, input="Look.", prompt_cache_retention="24h")
    with pytest.raises(openai.RateLimitError) as limited:
        await client.responses.create(model=SOL, input="Look.", extra_headers={"x-holdfast-fault": "429;retry-after=7"})
    assert limited.value.response.headers["retry-after"] == "7"
    assert (limited.value.request_id or "").startswith("req_sim-")


async def test_a_body_over_the_limit_is_refused_in_the_providers_format(server: RunningSimulator) -> None:
    large = io.BytesIO(b" " * (32 * 1024 * 1024 + 1))
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.post("/v1/chat/completions", data=large, headers={"authorization": "Bearer k"}) as response,
    ):
        assert response.status == 413
        assert (await response.json())["error"]["param"] is None


async def test_openrouters_client_chats_streams_and_lists_models(server: RunningSimulator) -> None:
    model = "anthropic/claude-sonnet-5.5"
    async with OpenRouter(api_key="any", server_url=f"{server.url}/api/v1", timeout_ms=5_000) as client:
        hello: Any = [{"role": "user", "content": "Look."}]
        reply = await client.chat.send_async(model=model, messages=hello, retries=None)
        assert reply.choices[0].message.content == "I look."
        stream = await client.chat.send_async(model=model, messages=hello, stream=True, retries=None)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "I look."
        assert model in [row.id for row in (await client.models.list_async()).result.data]
        with pytest.raises(NotFoundResponseError):
            await client.chat.send_async(model="none/such", messages=hello, retries=None)
