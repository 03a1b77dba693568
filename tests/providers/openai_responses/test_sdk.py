"""Our encoding against the client and the types of OpenAI's official library."""

from itertools import count

import openai
import pytest
from aiohttp import web
from openai.types.responses import Response, ResponseInputText, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.support.loopback import RequestHandler, says, serving

from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.items import make_signature
from holdfast.providers.sse import SseParser
from holdfast.types.blocks import Opaque, Text, Thinking, ToolUse
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Reply, StopReason
from holdfast.types.usage import Usage

SEARCH = b'{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}}'
CONTENT = (
    Thinking("One.\n\nTwo.", make_signature("gAAA", "rs_1", ["One.", "Two."])),
    Opaque("web_search_call", SEARCH),
    Text("I look at " + "it " * 40),
    Text("twice."),
    ToolUse("call_1", "read", '{"path": "a.txt", "more": "' + "x" * 80 + '"}'),
)
REPLY = Reply(CONTENT, "tool_use", Usage(input=5, cache_read=7, cache_write_other=9, output=3), "gpt-6-sol", "resp_1")
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def streams(reply: Reply) -> RequestHandler:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = b"".join(openai_responses.encode_stream(reply))
        return web.Response(body=body, content_type="text/event-stream")

    return answer


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=5.0)


@pytest.mark.parametrize("stop_reason", ["tool_use", "max_tokens", "refusal", "cancelled", "error"])
def test_a_whole_reply_matches_the_clients_types(stop_reason: StopReason) -> None:
    response = Response.model_validate_json(
        openai_responses.encode_reply(Reply(CONTENT, stop_reason, REPLY.usage, "gpt-6-sol", "resp_1"))
    )
    assert [item.type for item in response.output] == ["reasoning", "web_search_call", "message", "function_call"]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (21, 7)
    assert response.output_text == CONTENT[2].text + "twice."


def test_every_event_matches_the_clients_types_and_has_the_next_number() -> None:
    reader = SseParser()
    numbers = count()
    for chunk in openai_responses.encode_stream(REPLY):
        reader.feed(chunk)
        (sent,) = reader.events()
        event = EVENT.validate_json(sent.data)
        assert event.type == sent.name
        assert event.sequence_number == next(numbers)


async def test_the_clients_stream_adds_up_to_the_whole_reply() -> None:
    async with (
        serving(streams(REPLY)) as server,
        client_of(server.url) as client,
        client.responses.stream(model="gpt-6-sol", input="x") as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_response()
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == final.output_text
    reply = Response.model_validate_json(openai_responses.encode_reply(REPLY))
    assert final.output[:2] == reply.output[:2]
    assert [item.to_dict()["id"] for item in final.output] == [item.to_dict()["id"] for item in reply.output]
    calls = [item.arguments for item in final.output if item.type == "function_call"]
    assert calls == [block.arguments_json for block in CONTENT if isinstance(block, ToolUse)]
    assert final.usage == reply.usage


async def test_a_reply_that_the_client_sends_back_is_decoded_as_that_reply() -> None:
    encoded_reply = openai_responses.encode_reply(REPLY).decode()
    async with serving(says(encoded_reply, headers={"content-type": "application/json"})) as server:
        async with client_of(server.url) as client:
            first = await client.responses.create(model="gpt-6-sol", input="x")
            items = [item.to_dict() for item in first.output]
            await client.responses.create(model="gpt-6-sol", input=items, store=False)  # type: ignore[arg-type] # as JSON
        read = openai_responses.decode_request(server.bodies[1])
        assert server.requests[1].path == openai_responses.endpoint(Parameters("m", 1)).path
        assert server.requests[1].headers["authorization"] == openai_responses.credentials("any")["authorization"]
    blocks = [block for entry in read.prompt.entries for block in entry.content]
    assert [block for block in blocks if not isinstance(block, Opaque)] == [
        block for block in CONTENT if not isinstance(block, Opaque)
    ]


async def test_the_clients_count_request_is_decoded() -> None:
    count_json = '{"object":"response.input_tokens","input_tokens":7}'
    async with serving(says(count_json, headers={"content-type": "application/json"})) as server:
        async with client_of(server.url) as client:
            await client.responses.input_tokens.count(model="gpt-6-sol", input="Hello.", instructions="Be brief.")
        read = openai_responses.decode_request(server.bodies[0])
    assert [segment.section for segment in read.prompt.segments] == ["system", "messages"]


def test_a_breakpoint_is_where_the_clients_types_expect_it() -> None:
    segment = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    body = openai_responses.encode_request(Prompt((segment,)), Plan((Breakpoint(0, "12h"),)), Parameters("m", 1))
    part = body[body.index(b'{"type":"input_text"') : -len(b"]}]}")]
    breakpoint_json = ResponseInputText.model_validate_json(part).prompt_cache_breakpoint
    assert breakpoint_json is not None
    assert (breakpoint_json.mode, breakpoint_json.ttl) == ("explicit", "12h")
