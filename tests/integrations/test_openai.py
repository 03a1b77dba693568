"""OpenAI's own client, wrapped, against a provider on a real socket that answers as its adapter writes."""

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
TOOK = Usage(input=30, cache_read=1_024, cache_write_other=200, output=7)
SAID = Reply((Text("Two words."),), "end_turn", TOOK, SOL, "reply-1")
TALK: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello."}]

MARKED = {"type": "text", "text": "A", "prompt_cache_breakpoint": BREAKPOINT}

Wire = dict[str, Any]


async def answer(request: Any) -> Any:
    """As the provider of the path that was asked for."""
    adapter: Adapter = openai_responses if request.path.endswith("/responses") else openai_chat
    return await reply_handler(adapter, SAID)(request)


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
    given: Wire = {"model": SOL, "messages": TALK, **options}
    return client.chat.completions.create(**given)


def respond(client: openai.OpenAI, **options: Any) -> Any:
    given: Wire = {"model": SOL, "input": TALK, **options}
    return client.responses.create(**given)


def sent(server: Server) -> Wire:
    """The newest body."""
    body: Wire = json.loads(server.bodies[-1])
    return body


def recorded(client: object) -> list[Usage]:
    return [record.usage for record in recorder_of(client).calls]


def planned(client: object) -> list[int]:
    """How many marks each request had."""
    recorder = recorder_of(client)
    payloads = [event.payload for event in recorder.log.read(recorder.session_id)]
    return [len(payload.plan.breakpoints) for payload in payloads if isinstance(payload, RequestPrepared)]


# Chat


def test_a_chat_gets_a_key_and_a_breakpoint_behind_its_system_text(server: Server, client: openai.OpenAI) -> None:
    given = copy.deepcopy(TALK)
    reply = chat(client, messages=given)
    assert given == TALK
    assert isinstance(reply, ChatCompletion)
    assert reply.choices[0].message.content == "Two words."
    body = sent(server)
    marked = [{"type": "text", "text": SYSTEM, "prompt_cache_breakpoint": BREAKPOINT}]
    assert body["messages"] == [{"role": "system", "content": marked}, TALK[1]]
    assert body["prompt_cache_key"].startswith("holdfast-")
    assert planned(client) == [1]


def test_what_was_recorded_is_what_the_client_shows(client: openai.OpenAI) -> None:
    usage = chat(client).usage
    shown = respond(client).usage
    assert recorded(client) == [TOOK, TOOK]
    assert usage.prompt_tokens == shown.input_tokens == TOOK.tokens_sent
    assert usage.prompt_tokens_details.cached_tokens == TOOK.cache_read
    assert recorder_of(client).bill().calls == 2
    assert recorder_of(client).bill().cost_usd > 0


def test_the_key_is_that_of_the_first_system_text(server: Server, client: openai.OpenAI) -> None:
    chat(client)
    first = sent(server)["prompt_cache_key"]
    chat(client, messages=[{"role": "system", "content": "Another."}, TALK[1]])
    assert sent(server)["prompt_cache_key"] == first
    with connect(server) as other:
        respond(other)
    assert sent(server)["prompt_cache_key"] == first
    with connect(server) as other:
        chat(other, messages=TALK[1:])
    assert sent(server)["prompt_cache_key"] != first


def test_a_session_has_its_own_key(server: Server) -> None:
    with connect(server, session="ticket-7") as client:
        chat(client, extra_body={"other": 1})
        assert (sent(server)["prompt_cache_key"], sent(server)["other"]) == ("ticket-7", 1)
        respond(client)
        assert sent(server)["prompt_cache_key"] == "ticket-7"


@pytest.mark.parametrize("given", [{"prompt_cache_key": "mine"}, {"extra_body": {"prompt_cache_key": "mine"}}])
def test_the_callers_key_stays(server: Server, client: openai.OpenAI, given: Wire) -> None:
    chat(client, **given)
    assert sent(server)["prompt_cache_key"] == "mine"


def test_an_older_model_gets_a_key_and_no_breakpoint(server: Server, client: openai.OpenAI) -> None:
    chat(client, model=OLD)
    assert sent(server)["messages"] == TALK
    assert "prompt_cache_key" in sent(server)


def test_a_model_that_is_not_known_gets_nothing_and_is_recorded_without_a_price(
    server: Server, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    chat(client, model="gpt-99")
    chat(client, model="gpt-99", stream=True).close()
    assert sent(server) == {"model": "gpt-99", "messages": TALK, "stream": True}
    warnings = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert [(record.levelno, "gpt-99" in record.getMessage()) for record in warnings] == [(logging.WARNING, True)]
    bill = recorder_of(client).bill()
    assert (bill.calls, bill.cost_usd, bill.usage) == (1, Decimal(0), TOOK)


@pytest.mark.parametrize(
    "messages",
    [
        TALK[1:],
        [{"role": "system", "content": " "}, TALK[1]],
        [
            {"role": "system", "content": [{"type": "text", "text": "A", "prompt_cache_breakpoint": BREAKPOINT}]},
            TALK[1],
        ],
    ],
    ids=["no system text", "blank", "marked"],
)
def test_where_no_breakpoint_can_go_the_messages_stay(
    server: Server, client: openai.OpenAI, messages: list[Wire]
) -> None:
    chat(client, messages=messages)
    assert sent(server)["messages"] == messages


def test_the_breakpoint_stands_behind_the_last_of_the_first_instructions(server: Server, client: openai.OpenAI) -> None:
    more = {"role": "developer", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}
    late = {"role": "system", "content": "Late."}
    chat(client, messages=[TALK[0], more, TALK[1], late])
    marked = {"type": "text", "text": "B", "prompt_cache_breakpoint": BREAKPOINT}
    assert sent(server)["messages"] == [
        TALK[0],
        {"role": "developer", "content": [{"type": "text", "text": "A"}, marked]},
        TALK[1],
        late,
    ]


@pytest.mark.parametrize(("own", "added"), [(2, 1), (3, 0)])
def test_the_callers_breakpoints_and_the_providers_own_leave_room(
    server: Server, client: openai.OpenAI, own: int, added: int
) -> None:
    parts = [{"type": "text", "text": str(n), "prompt_cache_breakpoint": BREAKPOINT} for n in range(own)]
    chat(client, messages=[TALK[0], {"role": "user", "content": parts}])
    assert (sent(server)["messages"][0] != TALK[0]) == bool(added)
    assert planned(client) == [own + added]


def test_a_caller_who_places_all_breakpoints_is_left_alone(server: Server, client: openai.OpenAI) -> None:
    chat(client, extra_body={"prompt_cache_options": {"mode": "explicit"}})
    assert sent(server)["messages"] == TALK


def test_messages_that_are_put_in_by_hand_are_left_alone(server: Server, client: openai.OpenAI) -> None:
    by_hand = [TALK[0], {"role": "user", "content": "Instead."}]
    chat(client, extra_body={"messages": by_hand})
    assert sent(server)["messages"] == by_hand


# Chat streams


def test_a_chat_stream_tells_us_what_it_took_and_the_caller_what_he_asked_for(
    server: Server, client: openai.OpenAI
) -> None:
    stream = chat(client, stream=True)
    assert isinstance(stream, openai.Stream)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Two words."
    assert sent(server)["stream_options"] == {"include_usage": True}
    assert recorded(client) == [TOOK]


def test_who_asks_for_usage_sees_it(server: Server, client: openai.OpenAI) -> None:
    last = list(chat(client, stream=True, stream_options={"include_usage": True}))[-1]
    assert last.usage.prompt_tokens == TOOK.tokens_sent
    assert recorded(client) == [TOOK]


def test_who_wants_no_usage_gets_none(server: Server, client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": False}))
    assert all(chunk.usage is None for chunk in chunks)
    assert sent(server)["stream_options"] == {"include_usage": False}
    assert recorded(client) == [Usage()]


def test_other_options_of_a_stream_stay(server: Server, client: openai.OpenAI) -> None:
    list(chat(client, stream=True, stream_options={"include_obfuscation": False}))
    assert sent(server)["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_a_stream_whose_arguments_we_cannot_read_is_passed_on_whole(
    server: Server, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"when": datetime(2026, 11, 15, tzinfo=UTC), "stream_options": {"include_usage": True}}
    last = list(chat(client, stream=True, extra_body=given))[-1]
    assert last.usage.prompt_tokens == TOOK.tokens_sent
    assert "prompt_cache_key" not in sent(server)
    assert recorder_of(client).calls == ()
    assert "an argument of type datetime" in caplog.text


# Responses


def test_a_response_gets_a_key_and_a_breakpoint(server: Server, client: openai.OpenAI) -> None:
    assert respond(client).output_text == "Two words."
    body = sent(server)
    marked = [{"type": "input_text", "text": SYSTEM, "prompt_cache_breakpoint": BREAKPOINT}]
    assert body["input"] == [{"role": "system", "content": marked}, TALK[1]]
    assert body["prompt_cache_key"].startswith("holdfast-")


def test_instructions_carry_no_breakpoint(server: Server, client: openai.OpenAI) -> None:
    respond(client, instructions=SYSTEM, input="Hello.")
    body = sent(server)
    assert (body["instructions"], body["input"]) == (SYSTEM, "Hello.")
    assert recorder_of(client).calls[0].usage == TOOK


def test_a_response_is_streamed_and_recorded(client: openai.OpenAI) -> None:
    stream = respond(client, stream=True)
    assert isinstance(stream, openai.Stream)
    assert [event.type for event in stream][-1] == "response.completed"
    assert recorded(client) == [TOOK]


def test_the_stream_with_its_snapshots_is_the_clients_own(server: Server, client: openai.OpenAI) -> None:
    with client.responses.stream(model=SOL, input=TALK) as stream:
        assert stream.get_final_response().output_text == "Two words."
    assert recorded(client) == [TOOK]
    assert "prompt_cache_key" in sent(server)


def test_a_stream_that_is_left_early_is_a_cancelled_call(client: openai.OpenAI) -> None:
    with client.responses.stream(model=SOL, input=TALK) as stream:
        next(stream)
    recorder = recorder_of(client)
    payloads = [event.payload for event in recorder.log.read(recorder.session_id)]
    assert [payload.error_class for payload in payloads if isinstance(payload, LlmCallFailed)] == ["cancelled"]


# What passes through, and failures


def test_a_wrapped_client_is_a_client(server: Server, client: openai.OpenAI) -> None:
    assert isinstance(client, openai.OpenAI)
    raw = client.chat.completions.with_raw_response.create(model=SOL, messages=TALK)
    assert raw.parse().choices[0].message.content == "Two words."
    assert "prompt_cache_key" not in sent(server)
    chat(client.with_options(timeout=2))
    assert len(recorder_of(client).calls) == 1


def refuses(status: int) -> RequestHandler:
    body = openai_chat.encode_error("invalid_request", "no", status=status)[1]
    return says(body.decode(), status=status, headers={"content-type": "application/json"})


def test_the_clients_errors_pass_and_are_recorded() -> None:
    with serve_handlers(refuses(429)) as server, connect(server) as client:
        with pytest.raises(openai.RateLimitError):
            chat(client)
        with pytest.raises(openai.RateLimitError):
            respond(client, stream=True)
        recorder = recorder_of(client)
        failed = [event.payload for event in recorder.log.read(recorder.session_id)]
    kinds = [payload.error_class for payload in failed if isinstance(payload, LlmCallFailed)]
    assert kinds == ["rate_limit", "rate_limit"]


def test_a_reply_that_we_cannot_read_is_the_callers_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    strange = says('{"choices": 7, "usage": "none"}', headers={"content-type": "application/json"})
    with serve_handlers(strange) as server, connect(server) as client:
        assert chat(client).choices == 7
        assert recorder_of(client).calls == ()
    assert "a reply cannot be decoded" in caplog.text


# The other client


@pytest_asyncio.fixture
async def other() -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(answer) as server:
        bare = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0)
        async with wrap(bare) as client:
            yield client


async def test_the_asynchronous_client_is_wrapped_too(other: openai.AsyncOpenAI) -> None:
    assert isinstance(other, openai.AsyncOpenAI)
    assert (await other.chat.completions.create(model=SOL, messages=TALK)).choices[0].message.content == "Two words."
    chunks = [chunk async for chunk in await other.chat.completions.create(model=SOL, messages=TALK, stream=True)]
    assert all(chunk.choices for chunk in chunks)
    assert (await other.responses.create(model=SOL, input=TALK)).output_text == "Two words."
    events = [event.type async for event in await other.responses.create(model=SOL, input=TALK, stream=True)]
    assert events[-1] == "response.completed"
    async with other.responses.stream(model=SOL, input=TALK) as stream:
        assert (await stream.get_final_response()).output_text == "Two words."
    assert recorded(other) == [TOOK] * 5
    assert planned(other) == [1] * 5
