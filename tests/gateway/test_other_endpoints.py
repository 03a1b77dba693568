"""Endpoints that call no model directly: results of batches, embeddings, images, audio, token counts."""

import json
import time
from decimal import Decimal
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.support.served_gateway import RawUpstream, ServedGateway, raw_upstream, serve_gateway

from holdfast.catalog.lookup import find_model, price_at, utc_date
from holdfast.clock import ManualClock
from holdfast.economics.cost import cost_usd, uncached_cost_usd
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed
from holdfast.gateway.exchange import Exchange, GatewayCaller
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.recording.exchange_decode import find_other_model
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.gateway.routes import Target
from holdfast.ledger.accounting import uncached_call_usd
from holdfast.providers.tolerant_decode import UNKNOWN_MODEL
from holdfast.service.auth.keys import make_key
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage

NOW = 1_794_000_000.0
CLAUDE, GPT = "claude-sonnet-5-5", "gpt-5.4"
RESULTS_PATH = "/anthropic/v1/messages/batches/msgbatch_01HkcTjaV5uDC8jWR4ZsDV8d/results"
FILE_PATH = "/openai/v1/files/file-abc123def456/content"


def claude_result(number: int, usage: dict[str, Any]) -> dict[str, Any]:
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": CLAUDE,
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }
    return {"custom_id": f"request-{number}", "result": {"type": "succeeded", "message": message}}


CLAUDE_LINES: list[dict[str, Any]] = [
    claude_result(1, {"input_tokens": 1_000, "output_tokens": 50}),
    claude_result(2, {"input_tokens": 10, "cache_read_input_tokens": 990, "output_tokens": 70}),
    {"custom_id": "request-3", "result": {"type": "expired"}},
    {"custom_id": "request-4", "result": {"type": "errored", "error": {"type": "invalid_request_error"}}},
]
CLAUDE_USAGE = Usage(input=1_010, cache_read=990, output=120)
GPT_LINES: list[dict[str, Any]] = [
    {
        "id": "batch_req_1",
        "custom_id": "request-1",
        "response": {
            "status_code": 200,
            "request_id": "r",
            "body": {
                "model": GPT,
                "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
                "usage": {
                    "prompt_tokens": 500,
                    "completion_tokens": 20,
                    "total_tokens": 520,
                    "prompt_tokens_details": {"cached_tokens": 100},
                },
            },
        },
        "error": None,
    },
    {"id": "batch_req_2", "custom_id": "request-2", "response": None, "error": {"code": "batch_expired"}},
]


def encode_lines(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def respond(upstream: RawUpstream, body: bytes, content_type: str = "application/json", status: int = 200) -> None:
    head = b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    upstream.parts = (head % (status, content_type.encode(), len(body)), body)


def ended_calls(gateway: ServedGateway) -> list[LlmCallCompleted | LlmCallFailed]:
    events = (event for session in gateway.recorded_sessions() for event in gateway.store.read(session))
    return [event.payload for event in events if isinstance(event.payload, LlmCallCompleted | LlmCallFailed)]


def reasons(gateway: ServedGateway) -> list[str]:
    events = (event for session in gateway.recorded_sessions() for event in gateway.store.read(session))
    return [event.payload.reason for event in events if isinstance(event.payload, GatewayForwarded)]


@pytest.mark.parametrize(
    ("path", "lines", "model", "usage"),
    [
        (RESULTS_PATH, CLAUDE_LINES, f"anthropic:{CLAUDE}", CLAUDE_USAGE),
        (FILE_PATH, GPT_LINES, f"openai:{GPT}", Usage(input=400, cache_read=100, output=20)),
        (FILE_PATH.replace("/openai", "/mistral"), GPT_LINES, f"mistral:{GPT}", Usage(400, 100, output=20)),
    ],
    ids=["Anthropic", "OpenAI", "Mistral"],
)
def test_the_results_of_a_batch_are_recorded_once(
    path: str, lines: list[dict[str, Any]], model: str, usage: Usage
) -> None:
    store = MemoryStore()
    with raw_upstream() as upstream:
        respond(upstream, encode_lines(lines), "application/binary")
        for _ in range(2):
            # The second gateway is a restart: it has only the store of the first.
            with serve_gateway(upstream.url, store=store, clock=ManualClock(NOW)) as gateway:
                for _ in range(2):
                    assert httpx.get(gateway.url + path).content == encode_lines(lines)
                (call,) = ended_calls(gateway)
    assert isinstance(call, LlmCallCompleted)
    assert (call.model, call.usage) == (model, usage)


def test_a_batch_costs_half_of_each_requests_list_price_and_the_discount_is_no_saving_of_the_cache() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url, clock=ManualClock(NOW)) as gateway:
        respond(upstream, encode_lines(CLAUDE_LINES))
        httpx.get(gateway.url + RESULTS_PATH)
        (call,) = ended_calls(gateway)
        assert reasons(gateway) == ["2 results of a batch"]
    row = find_model(f"anthropic:{CLAUDE}")
    price = price_at(row, utc_date(NOW), 1_000)
    assert call.cost_usd == cost_usd(CLAUDE_USAGE, price) / 2
    assert uncached_call_usd(call, NOW, row) == uncached_cost_usd(CLAUDE_USAGE, price) / 2


def test_a_batch_of_a_host_without_a_known_discount_is_recorded_at_list_price_and_says_so() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url, clock=ManualClock(NOW)) as gateway:
        respond(upstream, encode_lines(CLAUDE_LINES))
        httpx.get(gateway.url + RESULTS_PATH.replace("/anthropic/", "/vertex/"))
        (call,) = ended_calls(gateway)
        assert reasons(gateway) == ["2 results of a batch, at list price: no batch price is known"]
    assert call.cost_usd > 0


def test_a_batch_counts_against_the_budget_of_its_key() -> None:
    limits = {"*": KeyLimits(provider_keys={"anthropic": "sk-test"}, budget_usd_a_day=0.000001)}
    with raw_upstream() as upstream, serve_gateway(upstream.url, grants=limits, clock=ManualClock(NOW)) as gateway:
        new_key = make_key("gateway", at=NOW, random_bytes=lambda size: bytes(size), name="team")
        gateway.service.records.add_key(new_key.row)
        respond(upstream, encode_lines(CLAUDE_LINES))
        statuses = []
        for _ in range(2):
            headers = {"authorization": f"Bearer {new_key.key}"}
            statuses.append(httpx.get(gateway.url + RESULTS_PATH, headers=headers).status_code)
            gateway.recorded_sessions()
    assert statuses == [200, 429]


@pytest.mark.parametrize("client", ["anthropic", "openai"])
def test_the_official_clients_read_the_results_of_a_batch_through_the_gateway(client: str) -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        if client == "openai":
            respond(upstream, encode_lines(GPT_LINES), "application/octet-stream")
            reader = openai.OpenAI(api_key="k", base_url=f"{gateway.url}/openai/v1", max_retries=0)
            assert reader.files.content("file-abc123def456").content == encode_lines(GPT_LINES)
        else:
            respond(upstream, encode_lines(CLAUDE_LINES), "application/x-jsonl")
            asker = anthropic.Anthropic(api_key="k", base_url=f"{gateway.url}/anthropic", max_retries=0)
            # The client reads the URL of the results from the batch.
            results = httpx.get(gateway.url + RESULTS_PATH, headers={"x-api-key": asker.api_key or ""})
            assert len(results.content.splitlines()) == len(CLAUDE_LINES)
        (call,) = ended_calls(gateway)
    assert call.usage.output > 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\x89PNG\r\n\x1a\n{}", 200),
        (b'{"custom_id": 1}\n[]\n{"custom_id"', 200),
        (encode_lines(GPT_LINES), 206),
        (b"", 200),
    ],
    ids=["an image", "not results", "part of a file", "nothing"],
)
def test_other_files_are_not_recorded(body: bytes, status: int) -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, body, "application/octet-stream", status)
        assert httpx.get(gateway.url + FILE_PATH).content == body
        assert gateway.recorded_sessions() == ()


def test_results_that_are_cut_are_counted_when_they_are_read_again() -> None:
    whole = encode_lines(CLAUDE_LINES)
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, whole)
        head, body = upstream.parts
        assert isinstance(body, bytes)
        upstream.parts = (head, body[:-40])
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(gateway.url + RESULTS_PATH)
        assert gateway.recorded_sessions() == ()
        upstream.parts = (head, body)
        httpx.get(gateway.url + RESULTS_PATH)
        (call,) = ended_calls(gateway)
    assert call.usage == CLAUDE_USAGE


def test_a_key_reads_no_part_of_the_results_of_a_batch_for_free() -> None:
    store, whole = MemoryStore(), encode_lines(CLAUDE_LINES * 20_000)
    made = make_key("gateway", at=NOW, random_bytes=lambda size: bytes(size), name="team")
    store.records.add_key(made.row)
    limits = {"*": KeyLimits(provider_keys={"anthropic": "sk-test"}, budget_usd_a_day=1_000.0)}
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=limits) as gateway:
        respond(upstream, whole)
        headers = {"authorization": f"Bearer {made.key}", "range": "bytes=0-900", "if-range": '"1"'}
        with httpx.stream("GET", gateway.url + RESULTS_PATH, headers=headers) as response:
            # It leaves before the last byte.
            assert next(response.iter_raw())
        deadline = time.monotonic() + 20
        while not ended_calls(gateway):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (call,) = ended_calls(gateway)
    assert call.usage.output == 20_000 * CLAUDE_USAGE.output
    assert b"range" not in upstream.heads[0].lower()


@pytest.mark.parametrize("reason", ["too large", "compressed"])
def test_results_of_a_batch_that_cannot_be_read_are_counted_by_their_size(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = encode_lines(CLAUDE_LINES)
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, body)
        if reason == "too large":
            monkeypatch.setattr("holdfast.gateway.exchange.BUFFERED_BYTES_MAX", 100)
        else:
            head, _ = upstream.parts
            assert isinstance(head, bytes)
            upstream.parts = (head.replace(b"content-type", b"content-encoding: compress\r\ncontent-type"), body)
        for _ in range(2):
            httpx.get(gateway.url + RESULTS_PATH)
        (call,) = ended_calls(gateway)
    assert call.usage == Usage(output=len(body) // 4)


AUDIO_USAGE = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
OTHER_CALLS: dict[str, tuple[str, dict[str, Any], bytes, str, str, Usage]] = {
    "embeddings": (
        "/openai/v1/embeddings",
        {"json": {"model": "text-embedding-3-small", "input": "Hi"}},
        json.dumps({"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}).encode(),
        "application/json",
        "openai:text-embedding-3-small",
        Usage(input=8),
    ),
    "embeddings of a deployment": (
        "/azure/openai/deployments/our-embeddings/embeddings",
        {"json": {"input": "Hi"}},
        json.dumps({"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}).encode(),
        "application/json",
        "azure:our-embeddings",
        Usage(input=8),
    ),
    "an image": (
        "/openai/v1/images/generations",
        {"json": {"model": "gpt-image-1", "prompt": "a cat"}},
        json.dumps({"data": [], "usage": {"input_tokens": 50, "output_tokens": 4_000, "total_tokens": 4_050}}).encode(),
        "application/json",
        "openai:gpt-image-1",
        Usage(input=50, output=4_000),
    ),
    "a transcription": (
        "/openai/v1/audio/transcriptions",
        {"data": {"model": "gpt-4o-transcribe"}, "files": {"file": ("a.wav", b"RIFF\r\n\x00\xff")}},
        json.dumps({"text": "Hi", "usage": AUDIO_USAGE}).encode(),
        "application/json",
        "openai:gpt-4o-transcribe",
        Usage(input=14, output=45),
    ),
    "a streamed transcription": (
        "/openai/v1/audio/transcriptions",
        {"data": {"model": "gpt-4o-transcribe", "stream": "true"}, "files": {"file": ("a.wav", b"RIFF")}},
        b'data: {"type":"transcript.text.delta","delta":"Hi"}\n\n'
        + b'data: {"type":"transcript.text.done","usage":%b}\n\n' % json.dumps(AUDIO_USAGE).encode(),
        "text/event-stream",
        "openai:gpt-4o-transcribe",
        Usage(input=14, output=45),
    ),
    "speech": (
        "/openai/v1/audio/speech",
        {"json": {"model": "tts-1", "input": "Hi", "voice": "alloy"}},
        b"ID3\x00\xff{",
        "audio/mpeg",
        "openai:tts-1",
        Usage(),
    ),
    "a token count": (
        "/anthropic/v1/messages/count_tokens",
        {"json": {"model": CLAUDE, "messages": []}},
        b'{"input_tokens": 2095}',
        "application/json",
        f"anthropic:{CLAUDE}",
        Usage(),
    ),
    "Converse": (
        "/bedrock/model/us.amazon.nova-lite-v1%3A0/converse",
        {"json": {"messages": []}},
        json.dumps(
            {"usage": {"inputTokens": 5, "outputTokens": 9, "cacheReadInputTokens": 7, "cacheWriteInputTokens": 3}}
        ).encode(),
        "application/json",
        "bedrock:us.amazon.nova-lite-v1:0",
        Usage(input=5, cache_read=7, cache_write_5m=3, output=9),
    ),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_a_call_of_another_endpoint_is_recorded_with_its_model_and_usage(name: str) -> None:
    path, request, response, content_type, model, usage = OTHER_CALLS[name]
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, response, content_type)
        assert httpx.post(gateway.url + path, **request).content == response
        (call,) = ended_calls(gateway)
    assert isinstance(call, LlmCallCompleted)
    assert (call.model, call.usage) == (model, usage)
    assert call.cost_usd >= Decimal(0)


def test_an_endpoint_is_not_the_name_of_a_key() -> None:
    path, request, response, content_type, _, _ = OTHER_CALLS["embeddings"]
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, response, content_type)
        httpx.post(gateway.url + path, **request)
        gateway.recorded_sessions()
        assert [(entry.key_id, entry.label) for entry in iterate_spending(gateway.store)] == [(None, None)]


def test_a_form_full_of_names_is_searched_for_its_model_in_a_moment() -> None:
    exchange = Exchange(Target("openai", "/v1/audio/transcriptions"), [], GatewayCaller("account"), NOW)
    exchange.add_request_bytes(b'name="model"\r\n' * 100_000)
    started = time.process_time()
    assert find_other_model(exchange) == UNKNOWN_MODEL
    assert time.process_time() - started < 5.0
