"""Anthropic's official client against the simulator, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic.types import Message, MessageParam, ToolParam, ToolUseBlock, Usage
from tests.support.served import TIMEOUT_SECONDS, SimulatorServer

from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.simulator.server import serve_simulator

SONNET = "claude-sonnet-5-5"
SYSTEM = "You are a careful assistant that reads files before it speaks of them. " * 60
TOOLS: list[ToolParam] = [
    {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
]
HELLO: list[MessageParam] = [{"role": "user", "content": "Hello."}]

LOOP = "\n".join(
    [
        '{"content": [{"type": "thinking", "thinking": "A file."}, {"type": "text", "text": "I look."},'
        ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt", "lines": [1, 2]}}]}',
        '{"content": [{"type": "tool_use", "name": "read", "input": {"path": "b.txt"}},'
        ' {"type": "tool_use", "name": "read", "input": {}}]}',
        '{"content": [{"type": "thinking", "thinking": "Enough."}, {"type": "text", "text": "Both are there."}]}',
    ]
)
FAILING = '{"fault": "429;retry-after=0.05"}\n{"content": "At last.", "fault": "529;retry-after=0.05"}'


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Iterator[SimulatorServer]:
    script: str = getattr(request, "param", "")
    with SimulatorServer(parse_script(script)) as running:
        yield running


@pytest.fixture
def client(simulated: SimulatorServer) -> Iterator[anthropic.Anthropic]:
    with simulated.client() as opened_client:
        yield opened_client


def scripted(script: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("simulated", [script], indirect=True)


def prompt_tokens(usage: Usage) -> int:
    return usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)


def results_for(message: Message) -> MessageParam:
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "text"} for call in calls],
    }


# Replies


def test_a_message_is_created(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=SONNET, max_tokens=50, messages=HELLO)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Echo: Hello."}]
    assert (message.role, message.model, message.stop_reason) == ("assistant", SONNET, "end_turn")
    assert message._request_id == "req_sim-000001"
    assert message.usage.output_tokens > 0


def test_text_is_streamed(client: anthropic.Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "word " * 40}]
    with client.messages.stream(model=SONNET, max_tokens=50, messages=messages) as stream:
        parts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(parts) > 1
    assert "".join(parts) == "Echo: " + "word " * 40
    assert final.stop_reason == "end_turn"
    reply = client.messages.create(model=SONNET, max_tokens=50, messages=messages)
    assert final.usage.to_dict() == reply.usage.to_dict()


@scripted(LOOP)
def test_thinking_and_calls_are_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=SONNET, max_tokens=50, messages=HELLO, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json"} <= kinds
    reply = client.messages.create(model=SONNET, max_tokens=50, messages=HELLO, tools=TOOLS)
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in reply.content]
    assert streamed.stop_reason == "tool_use"


@scripted(LOOP)
def test_a_tool_loop_reads_its_prompt_from_the_cache(client: anthropic.Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Are both files there?"}]
    usages: list[Usage] = []
    for _ in range(3):
        message = client.messages.create(
            model=SONNET,
            max_tokens=50,
            tools=TOOLS,
            system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            cache_control={"type": "ephemeral"},
            messages=messages,
        )
        usages.append(message.usage)
        messages += [{"role": "assistant", "content": message.content}, results_for(message)]
    assert message.stop_reason == "end_turn"
    assert [usage.cache_read_input_tokens for usage in usages] == [
        0,
        prompt_tokens(usages[0]),
        prompt_tokens(usages[1]),
    ]


def test_counted_tokens_equal_the_sum_of_usage(client: anthropic.Anthropic) -> None:
    token_count = client.messages.count_tokens(model=SONNET, system=SYSTEM, messages=HELLO, tools=TOOLS)
    message = client.messages.create(
        model=SONNET,
        max_tokens=50,
        system=SYSTEM,
        messages=HELLO,
        tools=TOOLS,
        cache_control={"type": "ephemeral"},
    )
    assert token_count.input_tokens == prompt_tokens(message.usage) > 0


def test_models_are_listed_page_by_page(client: anthropic.Anthropic) -> None:
    names = [model.id for model in client.models.list(limit=5)]
    assert SONNET in names
    assert len(names) == len(set(names)) > 10
    assert client.models.retrieve(SONNET).max_input_tokens == 1_000_000


# The cache


def create(client: anthropic.Anthropic, *, ttl: Any = "5m", **options: Any) -> Usage:
    arguments = {"model": SONNET, "max_tokens": 50, "messages": HELLO, **options}
    system: Any = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral", "ttl": ttl}}]
    message: Message = client.messages.create(system=system, **arguments)
    return message.usage


def test_a_request_without_output_warms_the_cache(client: anthropic.Anthropic) -> None:
    warming = create(client, max_tokens=0)
    assert warming.output_tokens == 0
    assert create(client).cache_read_input_tokens == warming.cache_creation_input_tokens


def test_the_cache_expires_after_five_minutes(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    create(client)
    simulated.advance(240)
    assert create(client).cache_creation_input_tokens == 0
    simulated.advance(300)
    assert create(client).cache_read_input_tokens == 0


def test_a_breakpoint_with_a_one_hour_ttl_outlives_twenty_minutes(
    simulated: SimulatorServer, client: anthropic.Anthropic
) -> None:
    first = create(client, ttl="1h")
    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_1h_input_tokens == first.cache_creation_input_tokens
    simulated.advance(1_200)
    assert create(client, ttl="1h").cache_read_input_tokens == first.cache_creation_input_tokens


def test_every_key_has_its_own_cache(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    create(client)
    with simulated.client(api_key="another") as other:
        assert create(other).cache_read_input_tokens == 0
    assert create(client).cache_creation_input_tokens == 0


# Failures


def test_five_breakpoints_are_a_bad_request(client: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": str(n), "cache_control": {"type": "ephemeral"}} for n in range(5)]
    with pytest.raises(anthropic.BadRequestError, match="A maximum of 4 blocks") as error:
        client.messages.create(model=SONNET, max_tokens=50, system=system, messages=HELLO)
    assert error.value.request_id == "req_sim-000001"


def test_a_missing_key_is_an_authentication_error(client: anthropic.Anthropic) -> None:
    no_key: Any = {"Authorization": anthropic.Omit()}
    with pytest.raises(anthropic.AuthenticationError, match="x-api-key header is required"):
        client.messages.create(model=SONNET, max_tokens=50, messages=HELLO, extra_headers=no_key)


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude-sonnet-5-5"):
        client.messages.create(model="claude-sonnet-55", max_tokens=50, messages=HELLO)


@scripted(FAILING)
def test_a_client_that_retries_gets_its_response(simulated: SimulatorServer) -> None:
    with simulated.client(max_retries=2) as patient:
        message = patient.messages.create(model=SONNET, max_tokens=50, messages=HELLO)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "At last."}]


@scripted(FAILING)
def test_a_client_that_does_not_retry_gets_each_failure(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.RateLimitError) as limited:
        client.messages.create(model=SONNET, max_tokens=50, messages=HELLO)
    assert limited.value.response.headers["retry-after"] == "0.05"
    with pytest.raises(anthropic.OverloadedError):
        client.messages.create(model=SONNET, max_tokens=50, messages=HELLO)


def test_a_failure_can_be_requested_by_header(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.OverloadedError):
        client.messages.create(model=SONNET, max_tokens=50, messages=HELLO, extra_headers={"x-holdfast-fault": "529"})
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model=SONNET, max_tokens=50, messages=HELLO, extra_headers={"x-holdfast-fault": "500"})


def test_a_refused_stream_fails_before_it_starts(client: anthropic.Anthropic) -> None:
    without_user_message: list[MessageParam] = [{"role": "assistant", "content": "Hi."}]
    with (
        pytest.raises(anthropic.BadRequestError, match="prefill"),
        client.messages.stream(model=SONNET, max_tokens=50, messages=HELLO + without_user_message),
    ):
        pass


@scripted(LOOP)
def test_thinking_after_a_changed_question_is_dropped_on_request(client: anthropic.Anthropic) -> None:
    first = client.messages.create(model=SONNET, max_tokens=50, messages=HELLO, tools=TOOLS)
    changed: Any = [
        {"role": "user", "content": "Another ask."},
        {"role": "assistant", "content": first.content},
        results_for(first),
    ]
    with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
        client.messages.create(model=SONNET, max_tokens=50, messages=changed, tools=TOOLS)
    message = client.beta.messages.create(
        model=SONNET,
        max_tokens=50,
        messages=changed,
        tools=TOOLS,
        thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
        betas=["thinking-binding-controls-2026-08-01"],
    )
    assert message.input_transformations is not None
    assert [dropped.path for dropped in message.input_transformations] == ["messages.1.content.0"]


# The asynchronous client


@pytest_asyncio.fixture
async def async_client() -> AsyncIterator[anthropic.AsyncAnthropic]:
    server = await serve_simulator(SimulatedProvider(script=parse_script(LOOP)))
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0)
    async with client:
        yield client
    await server.aclose()


async def test_the_asynchronous_client_gets_responses_too(async_client: anthropic.AsyncAnthropic) -> None:
    message = await async_client.messages.create(model=SONNET, max_tokens=50, messages=HELLO, tools=TOOLS)
    async with async_client.messages.stream(model=SONNET, max_tokens=50, messages=HELLO, tools=TOOLS) as stream:
        streamed = await stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in message.content]
    token_count = await async_client.messages.count_tokens(model=SONNET, messages=HELLO, tools=TOOLS)
    assert token_count.input_tokens == prompt_tokens(message.usage)


async def test_the_asynchronous_client_sees_failures(async_client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.RateLimitError):
        await async_client.messages.create(
            model=SONNET, max_tokens=50, messages=HELLO, extra_headers={"x-holdfast-fault": "429"}
        )


async def test_concurrent_calls_each_write_the_cache_and_later_calls_read_it(
    async_client: anthropic.AsyncAnthropic,
) -> None:
    async def ask(number: int) -> Usage:
        message = await async_client.messages.create(
            model=SONNET,
            max_tokens=50,
            system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": f"Ask {number}."}],
        )
        return message.usage

    usages = await asyncio.gather(*(ask(number) for number in range(5)))
    assert len({prompt_tokens(usage) for usage in usages}) == 1
    assert (await ask(0)).cache_creation_input_tokens == 0
