"""What Bedrock, Vertex, Azure and OpenAI-compatible hosts answer in the simulator."""

import base64
import json
from typing import Any

import pytest

from holdfast.providers.bedrock import EVENT_STREAM_TYPE, FrameParser
from holdfast.simulator.exchange import SimulatedResponse
from holdfast.simulator.provider import SimulatedProvider

MESSAGES = [{"role": "user", "content": "Hi"}]
CLAUDE = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 20, "messages": MESSAGES}
INVOKE = "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1:0/invoke"
VERTEX = "/v1/projects/p/locations/global/publishers/anthropic/models/claude-sonnet-4-5@20250929"


def post(path: str, body: dict[str, Any], **headers: str) -> SimulatedResponse:
    sent = {name.replace("_", "-"): value for name, value in headers.items()} or {"authorization": "Bearer key"}
    return SimulatedProvider().handle("POST", path, headers=sent, body=json.dumps(body).encode())


def test_bedrock_names_the_model_that_answered_and_counts_tokens_in_headers() -> None:
    response = post(INVOKE, CLAUDE)
    reply = json.loads(response.read_body())
    assert (response.status, reply["model"]) == (200, "claude-sonnet-4-5-20250929")
    assert response.headers["x-amzn-bedrock-input-token-count"] == str(reply["usage"]["input_tokens"])


def test_bedrock_streams_frames_whose_last_has_metrics() -> None:
    response = post(f"{INVOKE}-with-response-stream", CLAUDE)
    frames = list(FrameParser().feed(response.read_body()))
    assert response.headers["content-type"] == EVENT_STREAM_TYPE
    assert {frame.headers[":event-type"] for frame in frames} == {"chunk"}
    assert b"amazon-bedrock" in base64.b64decode(json.loads(frames[-1].payload)["bytes"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anthropic_version": None}, "anthropic_version: Field required"),
        ({"model": "claude-sonnet-4-5"}, "model: Extra inputs are not permitted"),
        ({"stream": True}, "stream: Extra inputs are not permitted"),
    ],
)
def test_bedrock_refuses_what_it_has_in_the_path(change: dict[str, Any], message: str) -> None:
    body = {name: value for name, value in {**CLAUDE, **change}.items() if value is not None}
    response = post(INVOKE, body)
    assert (response.status, json.loads(response.read_body())) == (400, {"message": message})


def test_vertex_counts_tokens_and_answers() -> None:
    reply = json.loads(post(f"{VERTEX}:rawPredict", CLAUDE).read_body())
    path = VERTEX.replace("claude-sonnet-4-5@20250929", "count-tokens")
    counted = json.loads(post(f"{path}:rawPredict", {**CLAUDE, "model": "claude-sonnet-4-5"}).read_body())
    assert counted["input_tokens"] == reply["usage"]["input_tokens"]
    assert (
        post(f"{VERTEX}:streamRawPredict", {**CLAUDE, "stream": True}).read_body().startswith(b"event: message_start")
    )


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/openai/deployments/ours/chat/completions", {"messages": MESSAGES}, "gpt-5.4-mini"),
        ("/openai/deployments/gpt-5/chat/completions", {"messages": MESSAGES}, "gpt-5"),
        ("/openai/v1/chat/completions", {"model": "gpt-5", "messages": MESSAGES}, "gpt-5"),
        ("/openai/v1/responses", {"model": "ours", "input": MESSAGES}, "gpt-5.4-mini"),
    ],
)
def test_a_deployment_of_azure_answers_with_the_name_of_its_model(path: str, body: dict[str, Any], model: str) -> None:
    response = post(path, body, api_key="key")
    assert (response.status, json.loads(response.read_body())["model"]) == (200, model)


@pytest.mark.parametrize(
    "host", ["deepseek", "xai", "mistral", "groq", "together", "fireworks", "moonshot", "cerebras"]
)
def test_a_host_answers_for_any_model_and_only_deepseek_counts_hits(host: str) -> None:
    reply = json.loads(post(f"/{host}/v1/chat/completions", {"model": "some-model", "messages": MESSAGES}).read_body())
    assert reply["model"] == "some-model"
    assert ("prompt_cache_hit_tokens" in reply["usage"]) == (host == "deepseek")


def test_a_signed_request_belongs_to_the_account_of_its_key() -> None:
    provider = SimulatedProvider()
    system = [{"type": "text", "text": "Read. " * 3_000, "cache_control": {"type": "ephemeral"}}]
    body = json.dumps({**CLAUDE, "system": system}).encode()
    reads = []
    for key, signature in (("A", "1"), ("A", "2"), ("B", "3")):
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={key}/20261117/us-east-1/bedrock/aws4_request, Signature={signature}"
        )
        response = provider.handle("POST", INVOKE, headers={"authorization": authorization}, body=body)
        reads.append(json.loads(response.read_body())["usage"]["cache_read_input_tokens"] > 0)
    assert reads == [False, True, False]
