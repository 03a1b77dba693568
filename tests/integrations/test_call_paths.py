"""Every way in which the official clients send a request: each one is planned and recorded."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from pydantic import BaseModel
from tests.support.served import TIMEOUT_SECONDS, SimulatorServer

from holdfast.integrations import recorder_of, wrap
from holdfast.simulator.script import parse_script

SYSTEM = "You are a careful assistant that reads files before it speaks of them. " * 240
CLAUDE: Any = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 50,
    "system": SYSTEM,
    "messages": [{"role": "user", "content": "Hello."}],
}
CHAT: Any = {
    "model": "gpt-6.1-sol",
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello."}],
}
RESPONSE: Any = {"model": "gpt-6.1-sol", "input": CHAT["messages"]}
GEMINI: Any = {
    "model": "gemini-3.8-flash",
    "contents": "Hello.",
    "config": types.GenerateContentConfig(system_instruction=SYSTEM),
}


class Answer(BaseModel):
    text: str


Call = Callable[[Any], Any]

ANTHROPIC_CALLS: dict[str, Call] = {
    "messages.create": lambda c: c.messages.create(**CLAUDE),
    "messages.create(stream)": lambda c: c.messages.create(**CLAUDE, stream=True),
    "messages.stream": lambda c: c.messages.stream(**CLAUDE),
    "messages.parse": lambda c: c.messages.parse(**CLAUDE, output_format=Answer),
    "messages.with_raw_response.create": lambda c: c.messages.with_raw_response.create(**CLAUDE),
    "messages.with_raw_response.create(stream)": lambda c: c.messages.with_raw_response.create(**CLAUDE, stream=True),
    "messages.with_streaming_response.create": lambda c: c.messages.with_streaming_response.create(**CLAUDE),
    "beta.messages.create": lambda c: c.beta.messages.create(**CLAUDE),
    "beta.messages.stream": lambda c: c.beta.messages.stream(**CLAUDE),
    "beta.messages.with_raw_response.create": lambda c: c.beta.messages.with_raw_response.create(**CLAUDE),
    "with_options().messages.create": lambda c: c.with_options(timeout=4).messages.create(**CLAUDE),
    "post": lambda c: c.post("/v1/messages", body=CLAUDE, cast_to=object),
}
OPENAI_CALLS: dict[str, Call] = {
    "chat.completions.create": lambda c: c.chat.completions.create(**CHAT),
    "chat.completions.create(stream)": lambda c: c.chat.completions.create(**CHAT, stream=True),
    "chat.completions.stream": lambda c: c.chat.completions.stream(**CHAT),
    "chat.completions.parse": lambda c: c.chat.completions.parse(**CHAT, response_format=Answer),
    "chat.completions.with_raw_response.create": lambda c: c.chat.completions.with_raw_response.create(**CHAT),
    "chat.completions.with_streaming_response.create": lambda c: c.chat.completions.with_streaming_response.create(
        **CHAT
    ),
    "responses.create": lambda c: c.responses.create(**RESPONSE),
    "responses.create(stream)": lambda c: c.responses.create(**RESPONSE, stream=True),
    "responses.stream": lambda c: c.responses.stream(**RESPONSE),
    "responses.parse": lambda c: c.responses.parse(**RESPONSE, text_format=Answer),
    "responses.with_raw_response.create": lambda c: c.responses.with_raw_response.create(**RESPONSE),
    "responses.with_streaming_response.create": lambda c: c.responses.with_streaming_response.create(**RESPONSE),
}
GEMINI_CALLS: dict[str, Call] = {
    "models.generate_content": lambda c: c.models.generate_content(**GEMINI),
    "models.generate_content_stream": lambda c: c.models.generate_content_stream(**GEMINI),
    "chats.send_message": lambda c: c.chats.create(model=GEMINI["model"]).send_message("Hello."),
    "chats.send_message_stream": lambda c: c.chats.create(model=GEMINI["model"]).send_message_stream("Hello."),
}
CALLS = {
    **{f"anthropic {name}": ("anthropic", call) for name, call in ANTHROPIC_CALLS.items()},
    **{f"openai {name}": ("openai", call) for name, call in OPENAI_CALLS.items()},
    **{f"gemini {name}": ("gemini", call) for name, call in GEMINI_CALLS.items()},
}
ADDED = {"anthropic": "cache_control", "openai": "prompt_cache_key", "gemini": ""}


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimulatorServer]:
    # An answer that `parse` accepts, again and again.
    with SimulatorServer(parse_script('{"content": "{\\"text\\": \\"Hi.\\"}"}\n' * 200)) as running:
        yield running


def connect(url: str, provider: str, *, is_async: bool) -> Any:
    options: Any = {"api_key": "any", "timeout": TIMEOUT_SECONDS, "max_retries": 0}
    if provider == "anthropic":
        return (anthropic.AsyncAnthropic if is_async else anthropic.Anthropic)(base_url=url, **options)
    if provider == "openai":
        return (openai.AsyncOpenAI if is_async else openai.OpenAI)(base_url=f"{url}/v1", **options)
    return genai.Client(
        api_key="any", http_options=types.HttpOptions(base_url=url, timeout=int(TIMEOUT_SECONDS * 1000))
    )


def read_all(result: Any) -> None:
    """Read what a call returns as its caller would: events, a context manager around them, or a whole response."""
    if hasattr(result, "__enter__") and not hasattr(result, "__next__"):
        with result as entered:
            read_all(entered)
    elif isinstance(result, Iterator):
        for _ in result:
            pass
    elif hasattr(result, "iter_lines"):
        list(result.iter_lines())
    elif hasattr(result, "http_response") and hasattr(result, "parse"):
        read_all(result.parse())


async def read_all_async(result: Any) -> None:
    if inspect.isawaitable(result):
        result = await result
    if hasattr(result, "__aenter__") and not hasattr(result, "__anext__"):
        async with result as entered:
            await read_all_async(entered)
    elif isinstance(result, AsyncIterator):
        async for _ in result:
            pass
    elif hasattr(result, "iter_lines"):
        async for _ in result.iter_lines():
            pass
    elif hasattr(result, "http_response") and hasattr(result, "parse"):
        parsed = result.parse()
        await read_all_async(parsed)


def check(simulated: SimulatorServer, client: object, provider: str) -> None:
    (call,) = recorder_of(client).calls
    assert call.completed
    assert call.usage.tokens_sent > 0
    assert call.usage.output > 0
    assert ADDED[provider] in str(simulated.bodies()[-1])


@pytest.mark.parametrize(("provider", "call"), CALLS.values(), ids=CALLS)
def test_every_blocking_call_is_planned_and_recorded(simulated: SimulatorServer, provider: str, call: Call) -> None:
    with wrap(connect(simulated.url, provider, is_async=False), store="memory:") as client:
        read_all(call(client))
        check(simulated, client, provider)


@pytest.mark.parametrize(("provider", "call"), CALLS.values(), ids=CALLS)
def test_every_asynchronous_call_is_planned_and_recorded(simulated: SimulatorServer, provider: str, call: Call) -> None:
    async def play() -> None:
        client = wrap(connect(simulated.url, provider, is_async=True), store="memory:")
        used = client.aio if provider == "gemini" else client
        await read_all_async(call(used))
        check(simulated, client, provider)
        await (used.aclose if provider == "gemini" else used.close)()

    asyncio.run(play())


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_counting_tokens_is_neither_changed_nor_recorded(simulated: SimulatorServer, provider: str) -> None:
    with wrap(connect(simulated.url, provider, is_async=False), store="memory:") as client:
        if provider == "anthropic":
            client.messages.count_tokens(model=CLAUDE["model"], messages=CLAUDE["messages"], system=SYSTEM)
            assert "cache_control" not in str(simulated.bodies()[-1])
        else:
            client.models.count_tokens(model=GEMINI["model"], contents="Hello.")
        assert recorder_of(client).session_ids == ()
