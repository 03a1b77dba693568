"""Named upstreams: clouds and OpenAI-compatible hosts, called by their official clients through the gateway."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.support.served_gateway import RawUpstream, ServedGateway, raw_upstream, serve_gateway

from holdfast.errors import UserError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.gateway import routes
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.routes import (
    RouteTable,
    UpstreamSettings,
    parse_upstream_option,
    parse_upstream_settings,
    resolve_upstreams,
)
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider
from holdfast.types.usage import Usage

SYSTEM = "You read files before you speak of them. " * 700
MESSAGES: list[Any] = [{"role": "user", "content": "Look."}]
CLAUDE_ON_BEDROCK = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123"


@contextmanager
def simulated_gateway(**options: Any) -> Iterator[tuple[SimulatedProvider, ServedGateway]]:
    simulator = SimulatedProvider()
    with serve_provider(simulator) as url, serve_gateway(url, **options) as gateway:
        yield simulator, gateway


def bedrock(gateway: ServedGateway) -> anthropic.AnthropicBedrock:
    return anthropic.AnthropicBedrock(
        api_key="bedrock-key", aws_region="us-east-1", base_url=f"{gateway.url}/bedrock", max_retries=0
    )


def vertex(gateway: ServedGateway) -> anthropic.AnthropicVertex:
    return anthropic.AnthropicVertex(
        access_token="ya29.token",
        region="global",
        project_id="project-1",
        base_url=f"{gateway.url}/vertex/v1",
        max_retries=0,
    )


def azure(gateway: ServedGateway) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(
        api_key="azure-key", api_version="2024-10-21", azure_endpoint=f"{gateway.url}/azure", max_retries=0
    )


def deepseek(gateway: ServedGateway) -> openai.OpenAI:
    return openai.OpenAI(api_key="key", base_url=f"{gateway.url}/deepseek", max_retries=0)


def ask_claude(client: Any, model: str, *, stream: bool = False) -> Usage:
    """The usage that the client reports."""
    request: dict[str, Any] = {
        "model": model,
        "max_tokens": 50,
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "messages": MESSAGES,
    }
    if stream:
        with client.messages.stream(**request) as events:
            usage = events.get_final_message().usage
    else:
        usage = client.messages.create(**request).usage
    return Usage(
        input=usage.input_tokens,
        cache_read=usage.cache_read_input_tokens,
        cache_write_5m=usage.cache_creation_input_tokens,
        output=usage.output_tokens,
    )


def ask_chat(client: openai.OpenAI, model: str, *, stream: bool = False) -> Any:
    """The usage that the client reports."""
    request: dict[str, Any] = {"model": model, "messages": [{"role": "system", "content": SYSTEM}, *MESSAGES]}
    if not stream:
        return client.chat.completions.create(**request).usage
    chunks = client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    return [chunk.usage for chunk in chunks][-1]


def ended_calls(gateway: ServedGateway) -> list[LlmCallCompleted]:
    """All calls in the order of their ends; each must have succeeded."""
    events = [event for session in gateway.recorded_sessions() for event in gateway.store.read(session)]
    ended = [event for event in events if isinstance(event.payload, LlmCallCompleted | LlmCallFailed)]
    payloads = [event.payload for event in sorted(ended, key=lambda event: (event.at, event.id))]
    assert all(isinstance(payload, LlmCallCompleted) for payload in payloads)
    return [payload for payload in payloads if isinstance(payload, LlmCallCompleted)]


@pytest.mark.parametrize(
    ("make_client", "model", "provider"),
    [(bedrock, CLAUDE_ON_BEDROCK, "bedrock"), (vertex, "claude-sonnet-4-5@20250929", "vertex")],
)
def test_claude_at_a_cloud_is_recorded_with_the_usage_that_its_client_reports(
    make_client: Callable[[ServedGateway], Any], model: str, provider: str
) -> None:
    with simulated_gateway() as (_, gateway):
        reported = [ask_claude(make_client(gateway), model, stream=stream) for stream in (False, True)]
        calls = ended_calls(gateway)
    assert [call.usage for call in calls] == reported
    assert reported[0].cache_write_5m > 0
    assert reported[1].cache_read == reported[0].cache_write_5m
    assert {(call.provider, call.model) for call in calls} == {(provider, f"{provider}:{model}")}
    assert all(call.cost_usd > 0 for call in calls)


@pytest.mark.parametrize("stream", [False, True])
def test_an_event_stream_is_forwarded_byte_for_byte(stream: bool) -> None:
    suffix = "-with-response-stream" if stream else ""
    path = f"/model/{CLAUDE_ON_BEDROCK}/invoke{suffix}"
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 50, "messages": MESSAGES}
    headers = {"authorization": "Bearer key"}
    with serve_provider(SimulatedProvider()) as url:
        direct = httpx.post(url + path, json=body, headers=headers)
    with simulated_gateway() as (simulator, gateway):
        through = httpx.post(f"{gateway.url}/bedrock{path}", json=body, headers=headers)
        received = simulator.requests[-1]
    assert (through.status_code, through.content) == (200, direct.content)
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert json.loads(received.body) == body


def test_a_deployment_of_azure_is_priced_as_the_model_that_answered() -> None:
    with simulated_gateway() as (_, gateway):
        usages = [ask_chat(azure(gateway), "our-deployment") for _ in range(2)]
        calls = ended_calls(gateway)
    assert [call.model for call in calls] == ["azure:gpt-5.4-mini"] * 2
    assert [call.usage.cache_read for call in calls] == [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert calls[1].usage.cache_read > 0
    assert calls[0].cost_usd > calls[1].cost_usd > 0


def test_a_configured_model_name_beats_the_one_in_the_response() -> None:
    upstreams = {"azure": UpstreamSettings(models={"our-deployment": "gpt-5"})}
    with simulated_gateway(upstreams=upstreams) as (_, gateway):
        ask_chat(azure(gateway), "our-deployment")
        (call,) = ended_calls(gateway)
    assert call.model == "azure:gpt-5"
    assert call.cost_usd > 0


@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/v1/responses"])
def test_azures_paths_without_a_deployment_are_model_calls(path: str) -> None:
    member = "input" if path.endswith("responses") else "messages"
    with simulated_gateway() as (_, gateway):
        response = httpx.post(
            f"{gateway.url}/azure{path}", json={"model": "gpt-5", member: MESSAGES}, headers={"api-key": "k"}
        )
        (call,) = ended_calls(gateway)
    assert (response.status_code, call.model, call.usage.output > 0) == (200, "azure:gpt-5", True)


@pytest.mark.parametrize("stream", [False, True])
def test_deepseeks_hits_and_misses_are_read(stream: bool) -> None:
    with simulated_gateway() as (_, gateway):
        usages = [ask_chat(deepseek(gateway), "deepseek-v4-pro", stream=stream) for _ in range(2)]
        calls = ended_calls(gateway)
    assert [call.usage.cache_read for call in calls] == [usage.prompt_cache_hit_tokens for usage in usages]
    assert [call.usage.input for call in calls] == [usage.prompt_cache_miss_tokens for usage in usages]
    assert calls[1].usage.cache_read > 0
    assert {(call.provider, call.model) for call in calls} == {("deepseek", "deepseek:deepseek-v4-pro")}


HOST_USAGES = {
    # xAI counts reasoning apart from the completion (docs.x.ai, "Consumption and Rate Limits").
    "xai": (
        {
            "prompt_tokens": 12,
            "completion_tokens": 1,
            "total_tokens": 399,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 386},
        },
        Usage(input=8, cache_read=4, output=387),
    ),
    "mistral": (
        {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 5}},
        Usage(input=4, cache_read=5, output=2),
    ),
    "groq": (
        {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 1}},
        Usage(input=8, cache_read=1, output=7),
    ),
    "moonshot": (
        {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "cached_tokens": 6},
        Usage(input=3, cache_read=6, output=2),
    ),
}


def respond(upstream: RawUpstream, body: bytes, content_type: str = "application/json", more: bytes = b"") -> None:
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n"
    upstream.parts = (head % (content_type.encode(), len(body), more), body)


@pytest.mark.parametrize("host", HOST_USAGES)
def test_the_usage_fields_of_a_host_are_read(host: str) -> None:
    wire, expected = HOST_USAGES[host]
    reply = {"id": "1", "model": "m", "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, json.dumps({**reply, "usage": wire}).encode())
        httpx.post(f"{gateway.url}/{host}/v1/chat/completions", json={"model": "m", "messages": MESSAGES})
        (call,) = ended_calls(gateway)
    assert (call.usage, call.model) == (expected, f"{host}:m")


@pytest.mark.parametrize("place", ["x_groq", "choice"])
def test_the_usage_of_a_stream_is_read_where_groq_and_moonshot_put_it(place: str) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunk: dict[str, Any] = {"id": "1", "choices": [last]}
    if place == "choice":
        last["usage"] = usage
    else:
        chunk["x_groq"] = {"id": "req", "usage": usage}
    first = {"id": "1", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}
    events = [f"data: {json.dumps(event)}\n\n" for event in (first, chunk)]
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, "".join([*events, "data: [DONE]\n\n"]).encode(), "text/event-stream")
        body = {"model": "m", "messages": MESSAGES, "stream": True}
        httpx.post(f"{gateway.url}/groq/v1/chat/completions", json=body)
        (call,) = ended_calls(gateway)
    assert call.usage == Usage(input=9, output=7)


def test_another_vendors_model_on_bedrock_is_recorded_by_the_headers_of_its_response() -> None:
    counts = b"X-Amzn-Bedrock-Input-Token-Count: 7\r\nX-Amzn-Bedrock-Output-Token-Count: 3\r\n"
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, b'{"generation": "Hi"}', more=counts)
        httpx.post(f"{gateway.url}/bedrock/model/meta.llama4-scout-17b-instruct-v1:0/invoke", json={"prompt": "Hi"})
        (call,) = ended_calls(gateway)
    assert call.usage == Usage(input=7, output=3)
    assert call.model == "bedrock:meta.llama4-scout-17b-instruct-v1:0"


def test_an_inference_profile_is_priced_as_the_model_that_answered() -> None:
    reply = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        respond(upstream, json.dumps(reply).encode())
        path = ARN.replace(":", "%3A").replace("/", "%2F")
        body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 5, "messages": MESSAGES}
        httpx.post(f"{gateway.url}/bedrock/model/{path}/invoke", json=body)
        (call,) = ended_calls(gateway)
        assert f"POST /model/{path}/invoke ".encode() in upstream.heads[0]
    assert call.model == "bedrock:claude-sonnet-4-5-20250929"
    assert call.cost_usd > 0


@pytest.mark.parametrize("provider", ["anthropic", None])
def test_calls_of_a_host_of_ones_own_are_recorded_under_its_name_or_another_provider(provider: str | None) -> None:
    upstreams = {"our-proxy": UpstreamSettings(dialect="anthropic", provider=provider)}
    with simulated_gateway(upstreams=upstreams) as (_, gateway):
        client = anthropic.Anthropic(api_key="k", base_url=f"{gateway.url}/our-proxy", max_retries=0)
        ask_claude(client, "claude-sonnet-5-5")
        (call,) = ended_calls(gateway)
    assert call.model == f"{provider or 'our-proxy'}:claude-sonnet-5-5"


# Rewriting


def test_improve_places_breakpoints_for_bedrock_and_adds_no_field_that_is_in_the_path() -> None:
    with simulated_gateway(improve=True) as (simulator, gateway):
        bedrock(gateway).messages.create(
            model=CLAUDE_ON_BEDROCK, max_tokens=50, system=SYSTEM, messages=[{"role": "user", "content": "Look."}]
        )
        sent = json.loads(simulator.requests[-1].body)
        (call,) = ended_calls(gateway)
    assert "cache_control" in json.dumps(sent["system"])
    assert not sent.keys() & {"model", "stream"}
    assert call.usage.cache_write > 0


def test_signed_requests_are_sent_unchanged_and_belong_to_the_account_that_signed_them() -> None:
    with simulated_gateway(improve=True) as (simulator, gateway):
        url = f"{gateway.url}/bedrock/model/{CLAUDE_ON_BEDROCK}/invoke"
        messages, bodies = list(MESSAGES), []
        for _ in range(2):
            request = {"anthropic_version": "v", "max_tokens": 50, "system": SYSTEM, "messages": messages}
            bodies.append(json.dumps(request).encode())
            signed = AWSRequest("POST", url, data=bodies[-1])
            SigV4Auth(Credentials("AKIDEXAMPLE", "secret"), "bedrock", "us-east-1").add_auth(signed)
            response = httpx.post(url, content=bodies[-1], headers=dict(signed.headers.items()))
            messages += [{"role": "assistant", "content": response.json()["content"]}, *MESSAGES]
        assert [received.body for received in simulator.requests] == bodies
        assert len(gateway.recorded_sessions()) == 1
        assert len(ended_calls(gateway)) == 2


def test_improve_adds_openais_fields_only_where_they_are_known() -> None:
    with simulated_gateway(improve=True) as (simulator, gateway):
        ask_chat(azure(gateway), "gpt-5.4")
        assert "prompt_cache_key" in json.loads(simulator.requests[-1].body)
        ask_chat(deepseek(gateway), "deepseek-v4-pro")
        assert "prompt_cache_key" not in json.loads(simulator.requests[-1].body)


# Keys


def test_a_gateway_key_is_replaced_by_the_key_of_the_upstream() -> None:
    environ = {"GROQ_API_KEY": "gsk-from-environment"}
    grants = {"*": KeyLimits(provider_keys={"deepseek": "sk-granted"})}
    with raw_upstream() as upstream, serve_gateway(upstream.url, grants=grants, environ=environ) as gateway:
        new_key = make_key("gateway", at=0.0, random_bytes=lambda size: bytes(size), name="team")
        gateway.service.records.add_key(new_key.row)
        respond(upstream, b"{}")
        for host in ("deepseek", "groq"):
            httpx.post(
                f"{gateway.url}/{host}/v1/embeddings", json={}, headers={"authorization": f"Bearer {new_key.key}"}
            )
    assert b"authorization: Bearer sk-granted" in upstream.heads[0]
    assert b"authorization: Bearer gsk-from-environment" in upstream.heads[1]


# Configuration


def table(**settings: Any) -> RouteTable:
    return RouteTable(resolve_upstreams({}, {}, parse_upstream_settings(settings)))


@pytest.mark.parametrize(
    ("path", "adapter", "provider", "model"),
    [
        ("/deepseek/chat/completions", "openai-chat", "deepseek", None),
        ("/deepseek/anthropic/v1/messages", "anthropic", "deepseek", None),
        ("/groq/openai/v1/chat/completions", "openai-chat", "groq", None),
        ("/xai/v1/responses", "openai", "xai", None),
        ("/openrouter/v1/messages", "anthropic", "openrouter", None),
        ("/openai/v1/chat/completions", "openai-chat", "openai-chat", None),
        ("/gemini/v1beta/openai/chat/completions", "openai-chat", "gemini", None),
        ("/gemini/v1beta/models/e-1:embedContent", None, "gemini", "e-1"),
        (
            "/vertex/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent",
            "gemini",
            "vertex",
            None,
        ),
        ("/vertex/v1/projects/p/locations/l/publishers/anthropic/models/c@1:rawPredict", "anthropic", "vertex", "c@1"),
        ("/cloud/model/eu.anthropic.claude-x-v1%3A0/invoke", "anthropic", "bedrock", "eu.anthropic.claude-x-v1:0"),
        ("/cloud/model/amazon.nova-lite-v1%3A0/invoke", None, "bedrock", "amazon.nova-lite-v1:0"),
        ("/cloud/model/eu.anthropic.claude-x-v1%3A0/converse", None, "bedrock", "eu.anthropic.claude-x-v1:0"),
    ],
)
def test_the_dialect_and_the_path_decide_how_a_call_is_recorded(
    path: str, adapter: str | None, provider: str, model: str | None
) -> None:
    routes = table(cloud={"dialect": "bedrock", "url": "https://bedrock-runtime.eu-west-1.amazonaws.com"})
    target = routes.find_target(path)
    assert (target.adapter_name, target.provider) == (adapter, provider)
    assert target.path_fields.get("model") == model


def test_options_beat_the_environment_which_beats_the_configuration_which_beats_presets() -> None:
    configured = parse_upstream_settings({"deepseek": {"url": "http://configured", "key_variable": "MY_KEY"}})
    environ = {"HOLDFAST_UPSTREAM_DEEPSEEK": "http://environment", "HOLDFAST_UPSTREAM_OUR_VLLM": "openai:http://vllm"}
    options = {"deepseek": parse_upstream_option("http://option", source="--upstream deepseek")}
    assert resolve_upstreams({}, {})["deepseek"].host == "api.deepseek.com"
    assert resolve_upstreams({}, {}, configured)["deepseek"].host == "configured"
    assert resolve_upstreams({}, environ, configured)["deepseek"].host == "environment"
    upstreams = resolve_upstreams(options, environ, configured)
    assert (upstreams["deepseek"].host, upstreams["deepseek"].key_variable) == ("option", "MY_KEY")
    assert (upstreams["our-vllm"].host, upstreams["our-vllm"].dialect) == ("vllm", "openai")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("klingon:http://x", "--upstream foo: unknown dialect 'klingon'; use one of anthropic, "),
        ("openai:ftp://x", "--upstream foo: an upstream must be a URL such as https://host"),
        ("foo", "--upstream foo: an upstream must be a URL such as https://host"),
    ],
)
def test_an_invalid_option_is_refused_in_a_line_that_names_it(text: str, expected: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_upstream_option(text, source="--upstream foo")
    assert str(refused.value).startswith(expected)


def test_an_invalid_variable_is_named() -> None:
    with pytest.raises(UserError, match=r"^HOLDFAST_UPSTREAM_DEEPSEEK: an upstream must be a URL"):
        resolve_upstreams({}, {"HOLDFAST_UPSTREAM_DEEPSEEK": "foo"})


def test_a_url_may_contain_another_one() -> None:
    assert parse_upstream_option("http://proxy/https://api.x", source="").url == "http://proxy/https://api.x"


def test_a_cloud_without_a_url_is_not_mounted() -> None:
    assert not {"bedrock", "azure"} & resolve_upstreams({}, {}).keys()
    assert RouteTable(resolve_upstreams({}, {})).find_mount("/bedrock/model/m/invoke") is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"mine": {"url": "http://x"}},
            "unknown upstream 'mine' without a dialect; set gateway.upstreams.mine.dialect",
        ),
        ({"mine": {"dialect": "openai"}}, "upstream 'mine' has no URL; set gateway.upstreams.mine.url"),
        ({"mine": {"dialect": "klingon", "url": "http://x"}}, "gateway.upstreams.mine: Invalid enum value 'klingon'"),
        ({"mine": {"address": "http://x"}}, "gateway.upstreams.mine: Object contains unknown field `address`"),
        ({"My Own": {"dialect": "openai", "url": "http://x"}}, "upstream 'My Own': a name has up to 40 letters a-z"),
        (
            {"mine": {"dialect": "openai", "url": "ftp://x"}},
            "gateway.upstreams.mine.url: an upstream must be a URL such as https://host",
        ),
    ],
)
def test_an_invalid_upstream_is_refused_in_one_line_that_names_it(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve_upstreams({}, {}, parse_upstream_settings(settings))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_presets_cover_their_hosts_base_urls() -> None:
    """A client that keeps the path of the host's own base URL reaches the same endpoint as one that does not."""
    routes = RouteTable(resolve_upstreams({}, {}))
    for host, prefix in {"groq": "/openai", "fireworks": "/inference", "openrouter": "/api"}.items():
        assert routes.upstreams[host].prefix == prefix
        assert routes.find_target(f"/{host}{prefix}/v1/models") == routes.find_target(f"/{host}/v1/models")


LONG = 60_000


@pytest.mark.parametrize("mount", ["anthropic", "bedrock", "vertex/v1", "openai", "gemini"])
@pytest.mark.parametrize(
    "steps", ["/model", "/model/x/invoke", "/model/claude", "/ws", "/publishers", "/deployments", "/v1"]
)
def test_no_path_takes_more_than_a_moment_to_match(mount: str, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are matched before any key is looked at, and on the event loop."""
    monkeypatch.setattr(routes, "PATH_CHARS_MAX", 2 * LONG)
    table = RouteTable(resolve_upstreams({}, {"HOLDFAST_UPSTREAM_BEDROCK": "https://any.invalid"}))
    started = time.process_time()
    for end in ("/1", "/!", "%0a"):
        path = f"/{mount}{steps * (LONG // len(steps))}{end}"
        if table.find_mount(path) is not None:
            table.find_target(path)
    assert time.process_time() - started < 2.0


def test_a_path_beyond_the_limit_is_no_providers() -> None:
    table = RouteTable(resolve_upstreams({}, {}))
    assert table.find_mount("/anthropic/" + "a" * (routes.PATH_CHARS_MAX - 11)) == "anthropic"
    assert table.find_mount("/anthropic/" + "a" * (routes.PATH_CHARS_MAX - 10)) is None
