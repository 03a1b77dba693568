"""OpenAI's own client, wrapped, against a server that answers with our adapters' encoding, over a real socket."""

import copy
import json
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion
from tests.support.loopback import RequestHandler, Server, says, serving
from tests.support.served import TIMEOUT_SECONDS, reply_handler, serve_handlers

from holdfast.events.payloads.calls import LlmCallFailed, RequestPrepared
from holdfast.integrations import recorder_of, wrap
from holdfast.providers.adapter import Adapter
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_responses import openai_responses
from holdfast.types.blocks import Text
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage

SOL = "gpt-6.1-sol"
OLD = "gpt-5.4"
SYSTEM = "You read files before you speak of them."
BREAKPOINT = {"mode": "explicit"}
USAGE = Usage(input=30, cache_read=1_024, cache_write_other=200, output=7)
REPLY = Reply((Text("Two words."),), "end_turn", USAGE, SOL, "reply-1")
MESSAGES: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello."}]

TEXT_WITH_BREAKPOINT = {"type": "text", "text": "A", "prompt_cache_breakpoint": BREAKPOINT}

Wire = dict[str, Any]


async def answer(request: Any) -> Any:
    """Answer with the adapter that belongs to the path of the request."""
    adapter: Adapter = openai_responses if request.path.endswith("/responses") else openai_chat
    return await reply_handler(adapter, REPLY)(request)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve_handlers(answer) as running:
        yield running


def connect(server: Server, **options: Any) -> openai.OpenAI:
    bare = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0)
    return wrap(bare, **options)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with connect(server) as opened:
        yield opened


def chat(client: openai.OpenAI, **options: Any) -> Any:
    arguments: Wire = {"model": SOL, "messages": MESSAGES, **options}
    return client.chat.completions.create(**arguments)


def respond(client: openai.OpenAI, **options: Any) -> Any:
    arguments: Wire = {"model": SOL, "input": MESSAGES, **options}
    return client.responses.create(**arguments)


def last_body(server: Server) -> Wire:
    """The body of the newest request."""
    body: Wire = json.loads(server.bodies[-1])
    return body


def recorded_usage(client: object) -> list[Usage]:
    return [record.usage for record in recorder_of(client).calls]


def planned_breakpoint_counts(client: object) -> list[int]:
    """How many breakpoints each request had."""
    recorder = recorder_of(client)
    payloads = [event.payload for event in recorder.read_events()]
    return [len(payload.plan.breakpoints) for payload in payloads if isinstance(payload, RequestPrepared)]


# Chat


def test_a_chat_gets_a_cache_key_and_a_breakpoint_after_its_system_text(server: Server, client: openai.OpenAI) -> None:
    callers_messages = copy.deepcopy(MESSAGES)
    reply = chat(client, messages=callers_messages)
    assert callers_messages == MESSAGES
    assert isinstance(reply, ChatCompletion)
    assert reply.choices[0].message.content == "Two words."
    body = last_body(server)
    with_breakpoint = [{"type": "text", "text": SYSTEM, "prompt_cache_breakpoint": BREAKPOINT}]
    assert body["messages"] == [{"role": "system", "content": with_breakpoint}, MESSAGES[1]]
    assert body["prompt_cache_key"].startswith("holdfast-")
    assert planned_breakpoint_counts(client) == [1]


def test_the_recorded_usage_equals_what_the_client_shows(client: openai.OpenAI) -> None:
    usage = chat(client).usage
    response_usage = respond(client).usage
    assert recorded_usage(client) == [USAGE, USAGE]
    assert usage.prompt_tokens == response_usage.input_tokens == USAGE.tokens_sent
    assert usage.prompt_tokens_details.cached_tokens == USAGE.cache_read
    assert recorder_of(client).bill().calls == 2
    assert recorder_of(client).bill().cost_usd > 0


def test_the_cache_key_is_derived_from_the_system_text(server: Server, client: openai.OpenAI) -> None:
    chat(client)
    first = last_body(server)["prompt_cache_key"]
    chat(client, messages=[MESSAGES[0], {"role": "user", "content": "Another question."}])
    assert last_body(server)["prompt_cache_key"] == first
    with connect(server) as other_client:
        respond(other_client)
    assert last_body(server)["prompt_cache_key"] == first
    chat(client, messages=[{"role": "system", "content": "Another."}, MESSAGES[1]])
    assert last_body(server)["prompt_cache_key"] != first
    chat(client, messages=MESSAGES[1:])
    assert last_body(server)["prompt_cache_key"] != first


def test_a_named_session_is_the_cache_key(server: Server) -> None:
    with connect(server, session="ticket-7") as client:
        chat(client, extra_body={"other": 1})
        assert (last_body(server)["prompt_cache_key"], last_body(server)["other"]) == ("ticket-7", 1)
        respond(client)
        assert last_body(server)["prompt_cache_key"] == "ticket-7"


@pytest.mark.parametrize("arguments", [{"prompt_cache_key": "mine"}, {"extra_body": {"prompt_cache_key": "mine"}}])
def test_the_callers_cache_key_is_kept(server: Server, client: openai.OpenAI, arguments: Wire) -> None:
    chat(client, **arguments)
    assert last_body(server)["prompt_cache_key"] == "mine"


def test_an_older_model_gets_a_cache_key_and_no_breakpoint(server: Server, client: openai.OpenAI) -> None:
    chat(client, model=OLD)
    assert last_body(server)["messages"] == MESSAGES
    assert "prompt_cache_key" in last_body(server)


def test_an_unknown_model_gets_nothing_and_is_recorded_without_a_price(
    server: Server, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    chat(client, model="gpt-99")
    chat(client, model="gpt-99", stream=True).close()
    assert last_body(server) == {"model": "gpt-99", "messages": MESSAGES, "stream": True}
    bill = recorder_of(client).bill()
    warnings = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert [(record.levelno, "gpt-99" in record.getMessage()) for record in warnings] == [(logging.WARNING, True)]
    # The second call was closed before its usage arrived, so that is an estimate.
    estimate = recorded_usage(client)[1]
    assert estimate.tokens_sent > 0
    assert (bill.calls, bill.cost_usd, bill.usage) == (2, Decimal(0), USAGE + estimate)


@pytest.mark.parametrize(
    "messages",
    [
        MESSAGES[1:],
        [{"role": "system", "content": " "}, MESSAGES[1]],
        [
            {"role": "system", "content": [{"type": "text", "text": "A", "prompt_cache_breakpoint": BREAKPOINT}]},
            MESSAGES[1],
        ],
    ],
    ids=["no system text", "blank", "with breakpoint"],
)
def test_messages_without_room_for_a_breakpoint_are_sent_unchanged(
    server: Server, client: openai.OpenAI, messages: list[Wire]
) -> None:
    chat(client, messages=messages)
    assert last_body(server)["messages"] == messages


def test_the_breakpoint_is_on_the_last_of_the_leading_instructions(server: Server, client: openai.OpenAI) -> None:
    more = {"role": "developer", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}
    late = {"role": "system", "content": "Late."}
    chat(client, messages=[MESSAGES[0], more, MESSAGES[1], late])
    with_breakpoint = {"type": "text", "text": "B", "prompt_cache_breakpoint": BREAKPOINT}
    assert last_body(server)["messages"] == [
        MESSAGES[0],
        {"role": "developer", "content": [{"type": "text", "text": "A"}, with_breakpoint]},
        MESSAGES[1],
        late,
    ]


@pytest.mark.parametrize(("own", "added"), [(2, 1), (3, 0)])
def test_the_callers_and_the_providers_own_breakpoints_count_towards_the_limit(
    server: Server, client: openai.OpenAI, own: int, added: int
) -> None:
    parts = [{"type": "text", "text": str(n), "prompt_cache_breakpoint": BREAKPOINT} for n in range(own)]
    chat(client, messages=[MESSAGES[0], {"role": "user", "content": parts}])
    assert (last_body(server)["messages"][0] != MESSAGES[0]) == bool(added)
    assert planned_breakpoint_counts(client) == [own + added]


def test_with_explicit_breakpoints_of_the_caller_none_is_added(server: Server, client: openai.OpenAI) -> None:
    chat(client, extra_body={"prompt_cache_options": {"mode": "explicit"}})
    assert last_body(server)["messages"] == MESSAGES


def test_messages_in_extra_body_are_planned_like_others(server: Server, client: openai.OpenAI) -> None:
    chat(client, extra_body={"messages": [MESSAGES[0], {"role": "user", "content": "Instead."}]})
    assert planned_breakpoint_counts(client) == [1]


# Chat streams


def test_a_chat_stream_records_usage_and_the_caller_gets_only_what_they_requested(
    server: Server, client: openai.OpenAI
) -> None:
    stream = chat(client, stream=True)
    assert isinstance(stream, openai.Stream)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Two words."
    assert last_body(server)["stream_options"] == {"include_usage": True}
    assert recorded_usage(client) == [USAGE]


def test_a_caller_who_requests_usage_gets_it(server: Server, client: openai.OpenAI) -> None:
    last = list(chat(client, stream=True, stream_options={"include_usage": True}))[-1]
    assert last.usage.prompt_tokens == USAGE.tokens_sent
    assert recorded_usage(client) == [USAGE]


def test_a_caller_who_disables_usage_gets_none_and_it_is_estimated(server: Server, client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": False}))
    assert all(chunk.usage is None for chunk in chunks)
    assert last_body(server)["stream_options"] == {"include_usage": False}
    (estimate,) = recorded_usage(client)
    assert estimate.tokens_sent > 0
    assert estimate.output > 0


def test_other_stream_options_are_kept(server: Server, client: openai.OpenAI) -> None:
    list(chat(client, stream=True, stream_options={"include_obfuscation": False}))
    assert last_body(server)["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_arguments_that_only_the_client_can_encode_are_planned_like_others(
    server: Server, client: openai.OpenAI
) -> None:
    list(chat(client, stream=True, extra_body={"when": datetime(2026, 11, 15, tzinfo=UTC)}))
    assert last_body(server)["when"] == "2026-11-15T00:00:00+00:00"
    assert "prompt_cache_key" in last_body(server)
    assert recorded_usage(client) == [USAGE]


# Responses


def test_a_response_gets_a_cache_key_and_a_breakpoint(server: Server, client: openai.OpenAI) -> None:
    assert respond(client).output_text == "Two words."
    body = last_body(server)
    with_breakpoint = [{"type": "input_text", "text": SYSTEM, "prompt_cache_breakpoint": BREAKPOINT}]
    assert body["input"] == [{"role": "system", "content": with_breakpoint}, MESSAGES[1]]
    assert body["prompt_cache_key"].startswith("holdfast-")


def test_instructions_get_no_breakpoint(server: Server, client: openai.OpenAI) -> None:
    respond(client, instructions=SYSTEM, input="Hello.")
    body = last_body(server)
    assert (body["instructions"], body["input"]) == (SYSTEM, "Hello.")
    assert recorder_of(client).calls[0].usage == USAGE


def test_a_response_is_streamed_and_recorded(client: openai.OpenAI) -> None:
    stream = respond(client, stream=True)
    assert isinstance(stream, openai.Stream)
    assert [event.type for event in stream][-1] == "response.completed"
    assert recorded_usage(client) == [USAGE]


def test_a_stream_with_snapshots_is_the_clients_own_type(server: Server, client: openai.OpenAI) -> None:
    with client.responses.stream(model=SOL, input=MESSAGES) as stream:
        assert stream.get_final_response().output_text == "Two words."
    assert recorded_usage(client) == [USAGE]
    assert "prompt_cache_key" in last_body(server)


def test_a_stream_that_is_closed_early_is_a_cancelled_call(client: openai.OpenAI) -> None:
    with client.responses.stream(model=SOL, input=MESSAGES) as stream:
        next(stream)
    recorder = recorder_of(client)
    payloads = [event.payload for event in recorder.read_events()]
    assert [payload.error_class for payload in payloads if isinstance(payload, LlmCallFailed)] == ["cancelled"]


# Pass-through and failures


def test_a_wrapped_client_is_a_client(server: Server, client: openai.OpenAI) -> None:
    assert isinstance(client, openai.OpenAI)
    raw = client.chat.completions.with_raw_response.create(model=SOL, messages=MESSAGES)
    assert raw.parse().choices[0].message.content == "Two words."
    assert "prompt_cache_key" in last_body(server)
    chat(client.with_options(timeout=2))
    assert len(recorder_of(client).calls) == 2


def refuses(status: int) -> RequestHandler:
    body = openai_chat.encode_error("invalid_request", "no", status=status)[1]
    return says(body.decode(), status=status, headers={"content-type": "application/json"})


def test_the_clients_errors_are_raised_unchanged_and_recorded() -> None:
    with serve_handlers(refuses(429)) as server, connect(server) as client:
        with pytest.raises(openai.RateLimitError):
            chat(client)
        with pytest.raises(openai.RateLimitError):
            respond(client, stream=True)
        recorder = recorder_of(client)
        failed = [event.payload for event in recorder.read_events()]
    kinds = [payload.error_class for payload in failed if isinstance(payload, LlmCallFailed)]
    assert kinds == ["rate_limit", "rate_limit"]


def test_an_undecodable_reply_still_reaches_the_caller() -> None:
    strange = says('{"choices": 7, "usage": "none"}', headers={"content-type": "application/json"})
    with serve_handlers(strange) as server, connect(server) as client:
        assert chat(client).choices == 7
        assert [call.completed for call in recorder_of(client).calls] == [False]


# The asynchronous client


@pytest_asyncio.fixture
async def async_client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(answer) as server:
        bare = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0)
        async with wrap(bare) as client:
            yield client


async def test_the_asynchronous_client_is_wrapped_too(async_client: openai.AsyncOpenAI) -> None:
    assert isinstance(async_client, openai.AsyncOpenAI)
    assert (await async_client.chat.completions.create(model=SOL, messages=MESSAGES)).choices[
        0
    ].message.content == "Two words."
    chunks = [
        chunk async for chunk in await async_client.chat.completions.create(model=SOL, messages=MESSAGES, stream=True)
    ]
    assert all(chunk.choices for chunk in chunks)
    assert (await async_client.responses.create(model=SOL, input=MESSAGES)).output_text == "Two words."
    events = [event.type async for event in await async_client.responses.create(model=SOL, input=MESSAGES, stream=True)]
    assert events[-1] == "response.completed"
    async with async_client.responses.stream(model=SOL, input=MESSAGES) as stream:
        assert (await stream.get_final_response()).output_text == "Two words."
    assert recorded_usage(async_client) == [USAGE] * 5
    assert planned_breakpoint_counts(async_client) == [1] * 5
