"""LangChain, pydantic-ai and LiteLLM with a wrapped client: their calls are planned, recorded, and read the cache."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from google import genai
from google.genai.types import HttpOptions
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from tests.support.served import SimulatorServer

from holdfast.errors import UserError
from holdfast.integrations import langchain, pydantic_ai, recorder_of, wrap
from holdfast.integrations import litellm as litellm_integration
from holdfast.simulator.script import parse_script

# LiteLLM would fetch its price list when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, HTTPHandler

CLAUDE, GPT, FLASH = "claude-sonnet-5-5", "gpt-6.1-sol", "gemini-3.8-flash"
SYSTEM = "You are a careful assistant that reads files before it speaks of them. " * 300


def read(path: str) -> str:
    """Reads a file."""
    return f"The text of {path}."


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimulatorServer]:
    with SimulatorServer(parse_script("")) as running:
        yield running


def make_langchain_model(url: str, name: str, **options: Any) -> Any:
    settings: Any = {"api_key": "any", "max_retries": 0, "timeout": 10, **options}
    if name == CLAUDE:
        return ChatAnthropic(model=name, base_url=url, max_tokens=200, **settings)
    return ChatOpenAI(model=name, base_url=f"{url}/v1", **settings)


# LangChain shares one HTTP client among models with the same options, which may not outlive its event loop.
LANGCHAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "ChatAnthropic": (CLAUDE, {"timeout": 10}),
    "ChatOpenAI": (GPT, {"timeout": 11}),
    "ChatOpenAI with responses": (GPT, {"timeout": 12, "use_responses_api": True}),
}


@pytest.mark.parametrize(("name", "options"), LANGCHAIN.values(), ids=LANGCHAIN)
def test_a_langchain_agent_reads_the_cache_and_is_recorded_however_it_calls(
    simulated: SimulatorServer, name: str, options: dict[str, Any]
) -> None:
    bare = make_langchain_model(simulated.url, name, **options)
    model = langchain.wrap(bare, store="memory:")
    agent = model.bind_tools([read])
    messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage("Hello.")]

    async def go_on_async() -> None:
        messages.append(HumanMessage("Then?"))
        messages.append(await agent.ainvoke(messages))
        messages.append(HumanMessage("At last?"))
        assert [chunk async for chunk in agent.astream(messages)]
        await (model._async_client if name == CLAUDE else model.root_async_client).close()

    messages.append(agent.invoke(messages))
    messages.append(HumanMessage("Go on."))
    first, *rest = agent.stream(messages)
    messages.append(sum(rest, first))
    asyncio.run(go_on_async())
    (model._client if name == CLAUDE else model.root_client).close()
    recorder = recorder_of(model)
    assert len(recorder.session_ids) == 1
    assert [call.completed for call in recorder.calls] == [True] * 4
    assert all(call.usage.cache_read for call in recorder.calls[1:])
    with pytest.raises(UserError, match="is not wrapped"):
        recorder_of(bare)


def test_a_langchain_model_is_wrapped_before_its_tools_are_bound(simulated: SimulatorServer) -> None:
    bound = make_langchain_model(simulated.url, CLAUDE).bind_tools([read])
    with pytest.raises(UserError, match="cannot be wrapped"):
        langchain.wrap(bound)


PYDANTIC_AI: dict[str, Callable[[str], Any]] = {
    "AnthropicModel": lambda url: AnthropicModel(CLAUDE, provider=AnthropicProvider(api_key="any", base_url=url)),
    "OpenAIChatModel": lambda url: OpenAIChatModel(GPT, provider=OpenAIProvider(api_key="any", base_url=f"{url}/v1")),
    "OpenAIResponsesModel": lambda url: OpenAIResponsesModel(
        GPT, provider=OpenAIProvider(api_key="any", base_url=f"{url}/v1")
    ),
    "GoogleModel": lambda url: GoogleModel(
        FLASH, provider=GoogleProvider(client=genai.Client(api_key="any", http_options=HttpOptions(base_url=url)))
    ),
}


@pytest.mark.parametrize("make_model", PYDANTIC_AI.values(), ids=PYDANTIC_AI)
def test_a_pydantic_ai_agent_is_recorded_however_it_runs(
    simulated: SimulatorServer, make_model: Callable[[str], Any]
) -> None:
    bare = make_model(simulated.url)
    model = pydantic_ai.wrap(bare, store="memory:")
    agent = Agent(model, instructions=SYSTEM, tools=[read])

    async def play() -> None:
        first = await agent.run("Hello.")
        async with agent.run_stream("Go on.", message_history=first.all_messages()) as streamed:
            await streamed.get_output()
        close = model.client.aio.aclose if isinstance(model, GoogleModel) else model.client.close
        await close()

    asyncio.run(play())
    calls = recorder_of(model).calls
    assert [call.completed for call in calls] == [True, True]
    assert calls[1].usage.cache_read > 0
    with pytest.raises(UserError, match="is not wrapped"):
        recorder_of(bare)


def complete(url: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello."}]
    return {"api_base": url, "api_key": "any", "messages": messages, "max_tokens": 50, **options}


def test_litellm_is_recorded_through_its_own_handlers_and_openais_client(simulated: SimulatorServer) -> None:
    handler = litellm_integration.wrap(HTTPHandler(), store="memory:")
    arguments = complete(simulated.url, model=f"anthropic/{CLAUDE}", client=handler)
    first = litellm.completion(**arguments)
    assert litellm.completion(**arguments).usage.cache_read_input_tokens > 0
    assert len(list(litellm.completion(**arguments, stream=True))) > 1
    # Of a stream LiteLLM does not read the last event, and keeps the response: that call ends with the process.
    assert [call.completed for call in recorder_of(handler).calls] == [True, True]
    assert recorder_of(handler).calls[0].usage.tokens_sent == first.usage.prompt_tokens

    with wrap(openai.OpenAI(api_key="any", base_url=f"{simulated.url}/v1"), store="memory:") as client:
        litellm.completion(**complete(f"{simulated.url}/v1", model=f"openai/{GPT}", client=client))
        assert len(recorder_of(client).calls) == 1


async def test_litellms_asynchronous_calls_are_recorded_too(simulated: SimulatorServer) -> None:
    handler: Any = litellm_integration.wrap(AsyncHTTPHandler(), store="memory:")
    await litellm.acompletion(**complete(simulated.url, model=f"anthropic/{CLAUDE}", client=handler))
    assert [call.completed for call in recorder_of(handler).calls] == [True]
    await handler.close()
