"""Calls of wrapped clients that we cannot decode: sent unchanged, answered unchanged, and recorded all the same."""

import json
from typing import Any

import anthropic
import msgspec
import pytest
from aiohttp import web
from google import genai
from google.genai import types
from tests.support.loopback import RequestHandler
from tests.support.served import TIMEOUT_SECONDS, serve_handlers

from holdfast.cli.sessions.sessions import describe_unreadable_calls
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed, RequestPrepared
from holdfast.integrations import recorder_of, wrap

SONNET = "claude-sonnet-5-5"
SECRET = "the-launch-code-is-swordfish"
ANTHROPIC_USAGE = {"input_tokens": 30, "cache_read_input_tokens": 400, "output_tokens": 7}
MESSAGE: dict[str, Any] = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": SONNET,
    "content": [{"type": "text", "text": "Two words."}],
    "stop_reason": "end_turn",
    "usage": ANTHROPIC_USAGE,
}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Two words."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]


def answers_json(document: object) -> RequestHandler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(document)

    return answer


def answers_events(events: list[dict[str, Any]]) -> RequestHandler:
    async def answer(request: web.Request) -> web.StreamResponse:
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text="".join(lines), content_type="text/event-stream")

    return answer


def payloads(client: object) -> list[object]:
    recorder = recorder_of(client)
    assert recorder.calls is not None  # Waits until all is written.
    return [event.payload for event in recorder.read_events()]


def only(client: object, kind: type[msgspec.Struct]) -> Any:
    (payload,) = [payload for payload in payloads(client) if isinstance(payload, kind)]
    return payload


class Asked:
    """A wrapped Anthropic client after one call, the body that arrived, and what the caller got."""

    def __init__(self, answer: RequestHandler, **options: Any) -> None:
        arguments: Any = {
            "model": SONNET,
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "Hello."}],
            **options,
        }
        with serve_handlers(answer) as server:
            bare = anthropic.Anthropic(base_url=server.url, api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0)
            with wrap(bare, store="memory:") as self.client:
                self.reply: Any = self.client.messages.create(**arguments)
                if options.get("stream"):
                    self.reply = list(self.reply)
                self.body = json.loads(server.bodies[0])


STRANGE_REQUESTS: dict[str, dict[str, Any]] = {
    "unknown role": {"messages": [{"role": "observer", "content": [{"type": "hologram", "is": SECRET}]}]},
    "null text": {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
    "tools as an object": {"tools": {"name": SECRET}},
    "number as content": {"messages": [{"role": "user", "content": 7}]},
    "messages in extra_body": {"extra_body": {"messages": 7}},
}


@pytest.mark.parametrize("options", STRANGE_REQUESTS.values(), ids=STRANGE_REQUESTS)
def test_request_that_cannot_be_decoded_is_sent_unchanged_and_recorded_with_its_usage(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked(answers_json(MESSAGE), **options)
    assert asked.reply.content[0].text == "Two words."
    for name, value in (options.get("extra_body") or options).items():
        assert asked.body[name] == value
    completed = only(asked.client, LlmCallCompleted)
    assert (completed.usage.input, completed.usage.cache_read, completed.usage.output) == (30, 400, 7)
    assert completed.cost_usd > 0
    assert only(asked.client, GatewayForwarded).unreadable
    assert len(only(asked.client, RequestPrepared).digests) >= 1
    assert SECRET not in caplog.text
    assert SECRET.encode() not in msgspec.json.encode(payloads(asked.client))


def test_parts_that_were_not_decoded_are_listed_with_the_session() -> None:
    asked = Asked(answers_json(MESSAGE), messages=[{"role": "user", "content": [{"type": "text", "text": None}]}])
    recorder = recorder_of(asked.client)
    (line,) = describe_unreadable_calls(list(recorder.read_events()))
    assert line.startswith("not decoded in 1 call: request: ")


def test_unknown_part_leaves_the_digests_of_the_other_parts_as_they_are() -> None:
    known = {"role": "user", "content": "Hello."}
    strange = {"role": "user", "content": [{"type": "hologram", "is": 1}]}
    readable, partial = Asked(answers_json(MESSAGE)), Asked(answers_json(MESSAGE), messages=[known, strange])
    before, after = (only(asked.client, RequestPrepared).digests for asked in (readable, partial))
    assert after[0].digest == before[0].digest


UNREADABLE_REPLIES: dict[str, dict[str, Any]] = {
    "content is a number": {**MESSAGE, "content": 7},
    "stop reason is a list": {**MESSAGE, "stop_reason": [SECRET]},
}


@pytest.mark.parametrize("reply", UNREADABLE_REPLIES.values(), ids=UNREADABLE_REPLIES)
def test_reply_that_cannot_be_decoded_reaches_the_caller_and_is_recorded_with_its_usage(
    reply: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked(answers_json(reply))
    assert asked.reply.id == "m1"
    completed = only(asked.client, LlmCallCompleted)
    assert completed.unreadable
    assert (completed.usage.input, completed.usage.cache_read, completed.usage.output) == (30, 400, 7)
    assert SECRET not in caplog.text
    assert SECRET.encode() not in msgspec.json.encode(payloads(asked.client))


@pytest.mark.parametrize("reply", [{"content": 7, "answer": "x" * 400}, [], "text"])
def test_reply_without_usage_is_recorded_as_unreadable_with_an_estimate(reply: object) -> None:
    asked = Asked(answers_json(reply))
    failed = only(asked.client, LlmCallFailed)
    assert failed.error_class == "unreadable"
    assert failed.is_output_estimated
    assert failed.usage.input > 0
    assert failed.cost_usd > 0


STRANGE_EVENTS: dict[str, dict[str, Any]] = {
    "a delta that is a number": {"type": "content_block_delta", "index": 0, "delta": 7},
    "an index that is a text": {"type": "content_block_delta", "index": "x", "delta": {"type": "text_delta"}},
}


@pytest.mark.parametrize("event", STRANGE_EVENTS.values(), ids=STRANGE_EVENTS)
def test_stream_with_an_event_that_cannot_be_decoded_is_recorded_with_the_usage_of_all_events(
    event: dict[str, Any],
) -> None:
    asked = Asked(answers_events([*EVENTS[:3], event, *EVENTS[3:]]), stream=True)
    assert [item.type for item in asked.reply] == [event["type"] for event in (*EVENTS[:3], event, *EVENTS[3:])]
    completed = only(asked.client, LlmCallCompleted)
    assert completed.unreadable
    assert (completed.usage.input, completed.usage.cache_read, completed.usage.output) == (30, 400, 9)


def test_long_stream_keeps_the_counters_of_its_start() -> None:
    deltas = [{**EVENTS[4], "usage": {"output_tokens": count}} for count in range(100)]
    strange = STRANGE_EVENTS["a delta that is a number"]
    asked = Asked(answers_events([EVENTS[0], strange, *deltas, EVENTS[5]]), stream=True)
    usage = only(asked.client, LlmCallCompleted).usage
    assert (usage.input, usage.cache_read, usage.output) == (30, 400, 99)


def test_gemini_call_that_cannot_be_decoded_is_recorded_with_its_usage() -> None:
    usage = {"promptTokenCount": 430, "cachedContentTokenCount": 400, "candidatesTokenCount": 7}
    reply = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Two words."}]}}], "usageMetadata": usage}
    with serve_handlers(answers_json(reply)) as server:
        options = types.HttpOptions(
            base_url=server.url, timeout=int(TIMEOUT_SECONDS * 1000), extra_body={"tools": {"name": "x"}}
        )
        with wrap(genai.Client(api_key="any", http_options=options)) as client:
            client.models.generate_content(model="gemini-3.8-flash", contents="Hello.")
            completed = only(client, LlmCallCompleted)
            assert (completed.usage.input, completed.usage.cache_read, completed.usage.output) == (30, 400, 7)
