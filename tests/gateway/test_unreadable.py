"""No exchange is invisible: what cannot be decoded is forwarded byte for byte and recorded all the same."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.served_gateway import RawUpstream, ServedGateway, raw_upstream, serve_gateway

from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed, RewriteEstimate
from holdfast.gateway import exchange
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.recording import recorder
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.analytics.results import count_unreadable_calls
from holdfast.ledger.calls import iter_calls
from holdfast.service.auth.keys import make_key
from holdfast.types.usage import Usage

ANTHROPIC_USAGE = {
    "input_tokens": 3,
    "cache_read_input_tokens": 70,
    "cache_creation_input_tokens": 20,
    "output_tokens": 5,
}
REPLY: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [{"type": "text", "text": "Done."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": ANTHROPIC_USAGE,
}
USAGE = Usage(input=3, cache_read=70, cache_write_5m=20, output=5)
CLAUDE_CODE: dict[str, Any] = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 100,
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "scope": "global"}}
    ],
    "messages": [
        {"role": "user", "content": "Fix the test."},
        {
            "role": "system",
            "content": [{"type": "text", "text": "Think less."}],
            "output_config": {"effort": "low"},
        },
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-5.2",
    "input": [{"role": "user", "content": "Hello"}, {"type": None, "role": "assistant", "content": [{"text": None}]}],
    "tools": [{"type": "function", "name": "search", "description": None, "parameters": None}],
}
GEMINI: dict[str, Any] = {
    "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
    "tools": {"functionDeclarations": [{"name": "search"}]},
}
GEMINI_REPLY = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 90, "cachedContentTokenCount": 40, "candidatesTokenCount": 5},
}
RESPONSES_REPLY = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "gpt-5.2",
    "output": [],
    "usage": {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 5},
}


def fail(*args: object, **options: object) -> None:
    raise IndexError("an error of our own")


def answer(upstream: RawUpstream, body: bytes, content_type: str = "application/json") -> None:
    # The upstream serves one request a connection; without `close` the gateway would reuse it.
    headers = f"content-type: {content_type}\r\nconnection: close\r\ncontent-length: {len(body)}"
    head = f"HTTP/1.1 200 OK\r\n{headers}\r\n\r\n"
    upstream.parts = (head.encode(), body)


def post(gateway: ServedGateway, path: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(*gateway.address, timeout=10)
    connection.request("POST", path, body, {"content-type": "application/json", **(headers or {})})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def get(gateway: ServedGateway, path: str) -> bytes:
    connection = http.client.HTTPConnection(*gateway.address, timeout=10)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def payloads(gateway: ServedGateway) -> list[Any]:
    return [event.payload for session in gateway.recorded_sessions() for event in gateway.store.read(session)]


def one_call(gateway: ServedGateway) -> tuple[GatewayForwarded, LlmCallCompleted | LlmCallFailed]:
    recorded = payloads(gateway)
    [forwarded] = [payload for payload in recorded if isinstance(payload, GatewayForwarded)]
    [ended] = [payload for payload in recorded if isinstance(payload, LlmCallCompleted | LlmCallFailed)]
    return forwarded, ended


@pytest.mark.parametrize(
    ("path", "request_body", "reply"),
    [
        ("/anthropic/v1/messages", CLAUDE_CODE, REPLY),
        ("/openai/v1/responses", RESPONSES, RESPONSES_REPLY),
        ("/gemini/v1beta/models/gemini-3-pro:generateContent", GEMINI, GEMINI_REPLY),
        ("/anthropic/v1/messages", {"model": "claude-sonnet-4-6", "messages": "?"}, REPLY),
        ("/anthropic/v1/messages", ["not", "an", "object"], REPLY),
    ],
)
@pytest.mark.parametrize("improve", [False, True])
def test_an_unknown_shape_of_request_is_forwarded_and_recorded_with_its_usage(
    path: str, request_body: Any, reply: dict[str, Any], improve: bool
) -> None:
    body = json.dumps(request_body).encode()
    with raw_upstream() as upstream, serve_gateway(upstream.url, improve=improve) as gateway:
        answer(upstream, json.dumps(reply).encode())
        assert post(gateway, path, body) == 200
        _, ended = one_call(gateway)
        assert isinstance(ended, LlmCallCompleted)
        assert (ended.usage.tokens_sent, ended.usage.output) in [(93, 5), (90, 5)]
        assert improve or upstream.bodies == [body]


def test_the_field_that_cannot_be_read_is_named_without_its_value() -> None:
    body = json.dumps({**CLAUDE_CODE, "messages": [{"role": "wizard", "content": "a secret"}]}).encode()
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        post(gateway, "/anthropic/v1/messages", body)
        forwarded, _ = one_call(gateway)
        assert forwarded.unreadable == (
            "messages.0 cannot be read: the role must be one of user, assistant, system - at `$.role`",
        )


def test_a_body_that_is_not_json_is_recorded() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        post(gateway, "/anthropic/v1/messages", b"\xff\x00{")
        _, ended = one_call(gateway)
        assert (ended.model, ended.usage) == ("anthropic:claude-sonnet-4-6", USAGE)
        assert upstream.bodies == [b"\xff\x00{"]


@pytest.mark.parametrize("depth", [450, 600, 900, 2_000])
def test_a_deeply_nested_body_is_recorded(depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"model": "m", "max_tokens": 1, "messages": [{{"role": "wizard", "content": {nested}}}]}}'
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        assert post(gateway, "/anthropic/v1/messages", body.encode()) == 200
        _, ended = one_call(gateway)
        assert ended.usage == USAGE


def test_a_body_too_large_to_buffer_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BUFFERED_BYTES_MAX", 100)
    body = json.dumps(CLAUDE_CODE).encode()
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(REPLY).encode()[:90] + b"}")
        post(gateway, "/anthropic/v1/messages", body)
        forwarded, ended = one_call(gateway)
        assert isinstance(forwarded.unreadable, tuple)
        assert str(len(body)) in forwarded.unreadable[0]
        assert isinstance(ended, LlmCallFailed)
        assert ended.usage.input == len(body) // 4
        assert upstream.bodies == [body]


def test_a_conversation_with_an_unreadable_message_keeps_its_prefix() -> None:
    """Only the unreadable part is carried as raw JSON, so the blocks before and after it still compare as equal."""
    first = {"role": "user", "content": "Fix the test."}
    odd = {"role": "wizard", "content": "abracadabra"}
    turns = [[first], [first, odd], [first, odd, {"role": "user", "content": "And the docs."}]]
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        for messages in turns:
            body = json.dumps({**CLAUDE_CODE, "messages": messages}).encode()
            assert post(gateway, "/anthropic/v1/messages", body) == 200
        [session] = gateway.recorded_sessions()
        assert [call.is_prefix_unchanged for call in iter_calls(gateway.store.read(session))] == [True] * 3


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        ({**REPLY, "content": "not a list"}, USAGE),
        ({**REPLY, "stop_reason": 7, "id": None}, USAGE),
        ({"usage": {**ANTHROPIC_USAGE, "output_tokens": "many"}}, Usage(input=3, cache_read=70, cache_write_5m=20)),
    ],
)
def test_usage_is_read_from_a_response_whose_content_cannot_be(reply: dict[str, Any], usage: Usage) -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(reply).encode())
        post(gateway, "/anthropic/v1/messages", json.dumps(CLAUDE_CODE).encode())
        _, ended = one_call(gateway)
        assert isinstance(ended, LlmCallCompleted)
        assert ended.usage == usage
        assert ended.unreadable


def test_usage_is_read_from_a_stream_with_an_event_that_cannot_be_decoded() -> None:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**REPLY, "content": []}},
        {"type": "content_block_start", "index": "first", "content_block": 3},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    stream = b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, stream, "text/event-stream")
        post(gateway, "/anthropic/v1/messages", json.dumps({**CLAUDE_CODE, "stream": True}).encode())
        _, ended = one_call(gateway)
        assert isinstance(ended, LlmCallCompleted)
        assert ended.usage == Usage(input=3, cache_read=70, cache_write_5m=20, output=9)


def test_a_response_that_cannot_be_read_is_recorded_as_unreadable_with_an_estimate() -> None:
    body, reply = json.dumps(CLAUDE_CODE).encode(), b"<html>" + b"x" * 394
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, reply, "text/html")
        post(gateway, "/anthropic/v1/messages", body)
        _, ended = one_call(gateway)
        assert isinstance(ended, LlmCallFailed)
        assert (ended.error_class, ended.is_output_estimated) == ("unreadable", True)
        assert ended.usage.tokens_sent > 0
        assert ended.usage.output == len(reply) // 4
        assert ended.cost_usd > 0


@pytest.mark.parametrize("reply", [json.dumps(REPLY).encode(), b"<html>"])
def test_a_model_without_a_price_uses_up_a_budget(reply: bytes) -> None:
    body = json.dumps({**CLAUDE_CODE, "model": "claude-of-tomorrow"}).encode()
    limits = KeyLimits(provider_keys={"anthropic": "sk-test"}, budget_usd_a_day=0.0001)
    with raw_upstream() as upstream, serve_gateway(upstream.url, grants={"*": limits}) as gateway:
        answer(upstream, reply)
        made = make_key("gateway", at=0.0, random_bytes=lambda size: b"k" * size, name="team")
        gateway.service.records.add_key(made.row)
        key = {"x-api-key": made.key}
        assert post(gateway, "/anthropic/v1/messages", body, key) == 200
        gateway.recorded_sessions()
        assert post(gateway, "/anthropic/v1/messages", body, key) == 429


def test_unreadable_responses_are_counted_in_report_metrics_and_readiness() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, b"<html>", "text/html")
        post(gateway, "/anthropic/v1/messages", json.dumps(CLAUDE_CODE).encode())
        gateway.recorded_sessions()
        queries, scope = gateway.store.cost_queries(), LedgerScope(simulated=True)
        counts = (count_unreadable_calls(queries, scope), queries.totals(scope).calls)
        metrics, ready = get(gateway, "/metrics"), get(gateway, "/readyz")
    assert counts == (1, 1)
    sample = 'holdfast_llm_calls_ended_total{model="anthropic:claude-sonnet-4-6",outcome="unreadable"} 1'
    assert sample in metrics.decode().splitlines()
    assert json.loads(ready)["unreadable_calls"] == 1


@pytest.mark.parametrize(
    ("path", "body", "reply", "usage"),
    [
        (
            "/openai/v1/embeddings",
            {"model": "text-embedding-3-small", "input": ["a", "b"]},
            {"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
            Usage(input=8),
        ),
        ("/anthropic/v1/messages/count_tokens/", {"model": "claude-sonnet-4-6"}, {"input_tokens": 12}, Usage()),
        ("/openai/v1//images/generations", {"model": "gpt-image-2"}, {"usage": {"input_tokens": 9}}, Usage(input=9)),
        ("/anthropic/v1/messages/batches", {"requests": []}, {"id": "msgbatch_1"}, Usage()),
    ],
)
def test_every_endpoint_of_a_provider_is_recorded(
    path: str, body: dict[str, Any], reply: dict[str, Any], usage: Usage
) -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(reply).encode())
        for _ in range(2):
            assert post(gateway, path, json.dumps(body).encode()) == 200
        [session] = gateway.recorded_sessions()
        ended = [event.payload for event in gateway.store.read(session) if isinstance(event.payload, LlmCallCompleted)]
        assert [payload.usage for payload in ended] == [usage] * 2
        assert ended[0].model.endswith(body.get("model", "unknown"))


def test_requests_that_only_read_are_forwarded_and_not_recorded() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, b'{"data": []}')
        get(gateway, "/openai/v1/models")
        assert gateway.recorded_sessions() == ()
        assert len(upstream.heads) == 1


def test_a_streamed_response_without_usage_is_estimated_and_not_free() -> None:
    """OpenAI's chat completions stream usage only if the request asks for it."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "gpt-6-sol"}
    delta = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Yes. " * 40}}]}
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in (delta, last)) + "data: [DONE]\n\n"
    body = {"model": "gpt-6-sol", "stream": True, "messages": [{"role": "user", "content": "Which boats? " * 400}]}
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, stream.encode(), "text/event-stream")
        assert post(gateway, "/openai/v1/chat/completions", json.dumps(body).encode()) == 200
        (session,) = gateway.recorded_sessions()
        (failed,) = (event.payload for event in gateway.store.read(session) if isinstance(event.payload, LlmCallFailed))
    assert (failed.error_class, failed.error_message_redacted) == ("unreadable", "the response has no usage")
    assert failed.usage.input > 500
    assert failed.usage.output > 20
    assert failed.cost_usd > 0


def test_a_call_whose_upstream_cannot_be_reached_is_recorded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with serve_gateway(f"http://127.0.0.1:{port}") as gateway:
        connection = http.client.HTTPConnection(*gateway.address, timeout=10)
        connection.request("POST", "/anthropic/v1/messages", json.dumps(CLAUDE_CODE), {"x-api-key": "any"})
        response = connection.getresponse()
        assert (response.status, b"it refuses connections" in response.read()) == (502, True)
        connection.close()
        (session,) = gateway.recorded_sessions()
        (failed,) = (event.payload for event in gateway.store.read(session) if isinstance(event.payload, LlmCallFailed))
    assert (failed.error_class, failed.error_message_redacted) == ("network", "the upstream could not be reached")


@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("decode_exchange_request", "/anthropic/v1/messages"),
        ("describe_request", "/anthropic/v1/messages"),
        ("trace_request", "/anthropic/v1/messages"),
        ("find_other_model", "/openai/v1/embeddings"),
    ],
)
def test_a_request_that_fails_in_our_own_code_is_recorded_with_the_usage_of_its_response(
    monkeypatch: pytest.MonkeyPatch, stage: str, path: str
) -> None:
    monkeypatch.setattr(recorder, stage, fail)
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        assert post(gateway, path, json.dumps(CLAUDE_CODE).encode()) == 200
        forwarded, ended = one_call(gateway)
        assert forwarded.unreadable == ("a request could not be analyzed: IndexError",)
        assert isinstance(ended, LlmCallCompleted)
        assert ended.usage == USAGE


def test_a_response_that_fails_in_our_own_code_is_recorded_with_an_estimate_and_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "decode_exchange_response", fail)
    limits = KeyLimits(provider_keys={"anthropic": "sk-test"}, budget_usd_a_day=0.0001)
    with raw_upstream() as upstream, serve_gateway(upstream.url, grants={"*": limits}) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        made = make_key("gateway", at=0.0, random_bytes=lambda size: b"k" * size, name="team")
        gateway.service.records.add_key(made.row)
        body, key = json.dumps(CLAUDE_CODE).encode(), {"x-api-key": made.key}
        assert post(gateway, "/anthropic/v1/messages", body, key) == 200
        _, ended = one_call(gateway)
        assert post(gateway, "/anthropic/v1/messages", body, key) == 429
        unreadable = count_unreadable_calls(gateway.store.cost_queries(), LedgerScope(simulated=True))
    assert isinstance(ended, LlmCallFailed)
    assert (ended.error_class, ended.is_output_estimated, unreadable) == ("unreadable", True, 1)
    assert ended.cost_usd > 0


def test_a_call_is_recorded_although_the_next_one_of_its_conversation_has_fewer_blocks() -> None:
    """The next request drops the tools while the first is in progress; each is priced by its own blocks."""
    tools = [{"name": f"tool_{number}", "input_schema": {"type": "object"}} for number in range(8)]
    marked = {"type": "text", "text": "Fix the test. " * 900, "cache_control": {"type": "ephemeral"}}
    opening, later = {"role": "user", "content": [marked]}, {"role": "user", "content": "And the docs."}
    first = {**CLAUDE_CODE, "tools": tools, "messages": [opening]}
    second = {**CLAUDE_CODE, "messages": [opening, {"role": "assistant", "content": "Done."}, later]}
    release = threading.Event()
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway, ThreadPoolExecutor(2) as pool:
        answer(upstream, json.dumps(REPLY).encode())
        upstream.parts = (release, *upstream.parts)
        statuses = []
        for count, request in enumerate((first, second), start=1):
            statuses.append(pool.submit(post, gateway, "/anthropic/v1/messages", json.dumps(request).encode()))
            while len(upstream.bodies) < count:
                time.sleep(0.01)
        release.set()
        assert [status.result() for status in statuses] == [200, 200]
        assert len(gateway.recorded_sessions()) == 1
        completed = [payload for payload in payloads(gateway) if isinstance(payload, LlmCallCompleted)]
    assert [call.usage for call in completed] == [USAGE, USAGE]
    assert all(isinstance(call.rewrite, RewriteEstimate) for call in completed)
