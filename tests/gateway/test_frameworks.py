"""LangChain's and pydantic-ai's clients through the gateway: their results are the same without it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from tests.support.sdk_clients import LOOK, RESULT, SCRIPT, SURE, SYSTEM
from tests.support.served_gateway import serve_gateway

from holdfast.clock import ManualClock
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

MODEL = "claude-sonnet-5-5"
Results = list[tuple[Any, ...]]


def read(path: str) -> str:
    """Reads a file."""
    return RESULT


def _langchain_client(url: str) -> Any:
    settings: Any = {
        "model": MODEL,
        "base_url": url,
        "api_key": "any",
        "max_retries": 0,
        "max_tokens": 200,
        "timeout": 10,
    }
    return ChatAnthropic(**settings).bind_tools([read])


def _first_messages() -> list[Any]:
    cache_control = {"cache_control": {"type": "ephemeral"}}
    return [SystemMessage([{"type": "text", "text": SYSTEM, **cache_control}]), HumanMessage(LOOK)]


def _next_messages(messages: list[Any], reply: Any) -> None:
    results: list[Any] = [ToolMessage(RESULT, tool_call_id=call["id"]) for call in reply.tool_calls]
    messages += [reply, *(results or [HumanMessage(SURE)])]


def _result_of(reply: Any) -> tuple[Any, ...]:
    usage = reply.usage_metadata
    return (
        str(reply.content),
        tuple((call["name"], str(call["args"])) for call in reply.tool_calls),
        usage["input_tokens"],
        usage["output_tokens"],
        usage["input_token_details"].get("cache_read"),
    )


def langchain(url: str, *, stream: bool) -> Results:
    client, messages, results = _langchain_client(url), _first_messages(), []
    for _ in range(3):
        if stream:
            first, *rest = client.stream(messages)
            reply = sum(rest, first)
        else:
            reply = client.invoke(messages)
        results.append(_result_of(reply))
        _next_messages(messages, reply)
    return results


def langchain_async(url: str, *, stream: bool) -> Results:
    async def play() -> Results:
        client, messages, results = _langchain_client(url), _first_messages(), []
        for _ in range(3):
            if stream:
                parts = [part async for part in client.astream(messages)]
                reply = sum(parts[1:], parts[0])
            else:
                reply = await client.ainvoke(messages)
            results.append(_result_of(reply))
            _next_messages(messages, reply)
        return results

    return asyncio.run(play())


def pydantic_ai(url: str, *, stream: bool) -> Results:
    async def play() -> Results:
        async with AnthropicProvider(api_key="any", base_url=url) as provider:
            settings: Any = {"anthropic_cache_instructions": True, "max_tokens": 200}
            agent = Agent(AnthropicModel(MODEL, provider=provider), instructions=SYSTEM, model_settings=settings)
            agent.tool_plain(read)
            results: Results = []
            history: list[Any] = []
            for question in (LOOK, SURE):
                if stream:
                    async with agent.run_stream(question, message_history=history) as running:
                        output = await running.get_output()
                        usage, history = running.usage, running.all_messages()
                else:
                    ran = await agent.run(question, message_history=history)
                    output, usage, history = ran.output, ran.usage, ran.all_messages()
                results.append((output, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens))
            return results

    return asyncio.run(play())


CLIENTS: dict[str, Callable[..., Results]] = {
    "langchain": langchain,
    "langchain, asynchronous": langchain_async,
    "pydantic-ai": pydantic_ai,
}


def simulated() -> SimulatedProvider:
    return SimulatedProvider(clock=ManualClock(1_000), script=SCRIPT)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_framework_gets_the_same_results_through_the_gateway_as_without_it(name: str, stream: bool) -> None:
    with serve_provider(simulated()) as url:
        direct = CLIENTS[name](url, stream=stream)
    provider = simulated()
    with serve_provider(provider) as url, serve_gateway(url) as gateway:
        through = CLIENTS[name](f"{gateway.url}/anthropic", stream=stream)
        (session,) = gateway.recorded_sessions()
        recorded = list(iter_calls(gateway.store.read(session)))
    assert through == direct
    assert len(direct) >= 2
    assert len(recorded) == len(provider.requests) >= 2
    assert sum(call.usage.cache_read for call in recorded) > 1_000
