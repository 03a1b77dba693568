"""OpenAI's own client, wrapped, against the simulator and its caches, over a real socket."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tests.support.served import TIMEOUT_SECONDS, SimulatorServer

from holdfast.integrations import recorder_of, wrap
from holdfast.simulator.script import parse_script

SOL = "gpt-6.1-sol"
SYSTEM = "You are a careful assistant that reads files before it speaks of them. " * 120

Ask = Callable[[openai.OpenAI, str], tuple[int, int]]
"""Sends a question; returns the tokens read from the cache and written to it, as the client reports them."""


def chat(client: openai.OpenAI, question: str) -> tuple[int, int]:
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    usage: Any = client.chat.completions.create(model=SOL, messages=messages).usage
    return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens


def streamed_chat(client: openai.OpenAI, question: str) -> tuple[int, int]:
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(model=SOL, messages=messages, stream=True, stream_options=options)
    usage: Any = list(stream)[-1].usage
    return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens


def respond(client: openai.OpenAI, question: str) -> tuple[int, int]:
    messages: Any = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": question}]
    usage: Any = client.responses.create(model=SOL, input=messages).usage
    return usage.input_tokens_details.cached_tokens, usage.input_tokens_details.cache_write_tokens


def streamed_response(client: openai.OpenAI, question: str) -> tuple[int, int]:
    messages: Any = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": question}]
    with client.responses.stream(model=SOL, input=messages) as stream:
        usage: Any = stream.get_final_response().usage
    return usage.input_tokens_details.cached_tokens, usage.input_tokens_details.cache_write_tokens


every_way = pytest.mark.parametrize("ask", [chat, streamed_chat, respond, streamed_response])


@pytest.fixture
def bare() -> Iterator[openai.OpenAI]:
    with (
        SimulatorServer(parse_script("")) as simulated,
        openai.OpenAI(base_url=f"{simulated.url}/v1", api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0) as client,
    ):
        yield client


@every_way
def test_another_question_reads_the_system_text_of_the_first(bare: openai.OpenAI, ask: Ask) -> None:
    client = wrap(bare)
    first, second = ask(client, "What is a prefix?"), ask(client, "What is a suffix?")
    assert first[0] == 0
    assert 0 < second[0] < first[1]
    assert [(record.usage.cache_read, record.usage.cache_write) for record in recorder_of(client).calls] == [
        first,
        second,
    ]


def test_a_chat_continues_with_the_clients_own_objects(bare: openai.OpenAI) -> None:
    client = wrap(bare)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello."}]
    for word in ("Go on.", "And then?"):
        reply = client.chat.completions.create(model=SOL, messages=messages)
        messages += [reply.choices[0].message, {"role": "user", "content": word}]
    client.chat.completions.create(model=SOL, messages=messages)
    records = recorder_of(client).calls
    assert [record.is_prefix_unchanged for record in records] == [True] * 3
    assert records[0].usage.cache_read < records[1].usage.cache_read < records[2].usage.cache_read


def test_a_response_continues_with_the_clients_own_objects(bare: openai.OpenAI) -> None:
    client = wrap(bare)
    messages: list[Any] = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": "Hello."}]
    for word in ("Go on.", "And then?"):
        messages += [*client.responses.create(model=SOL, input=messages).output, {"role": "user", "content": word}]
    client.responses.create(model=SOL, input=messages)
    records = recorder_of(client).calls
    assert [record.is_prefix_unchanged for record in records] == [True] * 3
    assert records[0].usage.cache_read < records[1].usage.cache_read < records[2].usage.cache_read


@every_way
def test_without_wrapping_another_question_reads_nothing(bare: openai.OpenAI, ask: Ask) -> None:
    ask(bare, "What is a prefix?")
    assert ask(bare, "What is a suffix?")[0] == 0
