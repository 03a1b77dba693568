"""Gemini's explicit caches: encoding of requests and decoding of responses."""

import json

import pytest
from google.genai import types

from holdfast.errors import OrderError, ProviderError, UserError
from holdfast.providers.adapter import Endpoint, ExplicitCacheEntry
from holdfast.providers.gemini import cached_content, gemini
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Parameters, Segment, Stability
from holdfast.types.request_buffer import RequestBuffer
from holdfast.types.tool_spec import ToolSpec

MODEL = "gemini-3.8-flash"
NAME = "cachedContents/abc-1"
JSON_HEADERS = (("content-type", "application/json"),)
TOOLS = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "Reads } [.", '{"type":"object"}'),))
OWN = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("x", "", "{}", '{"googleSearch":{}}'),))
SYSTEM = Segment("role", Stability.EPOCH, "system", system=(Text('Be "brief" {.'),))
SEED = Segment("memory", Stability.VOLATILE, "system", system=(Text("today"),))
HISTORY = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("Hi."),)),))
CACHE = ExplicitCacheEntry(NAME, MODEL, 5000, 1_800_000_000.25, "head")


def buffer_of(*segments: Segment) -> RequestBuffer:
    buffer = RequestBuffer(gemini, len)
    for segment in segments:
        buffer.extend(gemini.encode_segment(segment))
    return buffer


def stable_prefix(buffer: RequestBuffer) -> bytes:
    return buffer.cacheable_bytes()[: buffer.stable_prefix_length]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (
            (TOOLS, SYSTEM),
            {
                "tools": [
                    {
                        "functionDeclarations": [
                            {
                                "name": "read",
                                "description": "Reads } [.",
                                "parametersJsonSchema": {"type": "object"},
                            }
                        ]
                    }
                ],
                "systemInstruction": {"parts": [{"text": 'Be "brief" {.'}]},
            },
        ),
        ((OWN,), {"tools": [{"googleSearch": {}}]}),
        ((SYSTEM,), {"systemInstruction": {"parts": [{"text": 'Be "brief" {.'}]}}),
    ],
)
def test_a_cache_is_created_from_the_bytes_of_a_request(
    prefix: tuple[Segment, ...], expected: dict[str, object]
) -> None:
    buffer = buffer_of(*prefix, HISTORY)
    cacheable = stable_prefix(buffer)
    endpoint, body = cached_content.encode_create_cache(Parameters(MODEL, 1), cacheable, ttl_seconds=300)
    assert endpoint == Endpoint("/v1/cachedContents", JSON_HEADERS)
    assert json.loads(body) == {"model": f"models/{MODEL}", "ttl": "300s", **expected}
    assert cacheable in body
    assert cacheable in buffer.render(gemini.request_head(Parameters(MODEL, 1)))


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(MODEL, 1, tool_choice_json='{"type":"any"}'),
        Parameters(MODEL, 1, extra=(("labels", "{}"), ("toolConfig", '{"functionCallingConfig":{"mode":"ANY"}}'))),
    ],
)
def test_a_cache_has_the_tool_choice_that_its_requests_cannot_have(parameters: Parameters) -> None:
    _, body = cached_content.encode_create_cache(
        parameters, stable_prefix(buffer_of(TOOLS)), ttl_seconds=60, display_name="head"
    )
    assert body.startswith(
        b'{"model":"models/gemini-3.8-flash","ttl":"60s","displayName":"head",'
        b'"toolConfig":{"functionCallingConfig":{"mode":"ANY"}},"tools":['
    )
    referring = cached_content.reference_cache(parameters, NAME)
    assert b"toolConfig" not in gemini.request_head(referring)
    assert referring.tool_choice_json is None


def test_an_empty_prefix_cannot_be_cached() -> None:
    with pytest.raises(UserError, match="nothing to cache"):
        cached_content.encode_create_cache(Parameters(MODEL, 1), stable_prefix(buffer_of(HISTORY)), ttl_seconds=60)


@pytest.mark.parametrize("seconds", [0, -1, cached_content.TTL_SECONDS_MAX + 1])
def test_an_impossible_ttl_is_refused(seconds: int) -> None:
    with pytest.raises(UserError, match="the TTL of a cache must be 1 to"):
        cached_content.encode_extend_cache(NAME, ttl_seconds=seconds)


def test_a_request_with_a_cache_omits_the_cached_content() -> None:
    buffer = buffer_of(TOOLS, SYSTEM, HISTORY)
    parameters = cached_content.reference_cache(Parameters(MODEL, 5, extra=(("labels", "{}"),)), NAME)
    assert buffer.render(gemini.request_head(parameters), start=buffer.stable_count) == (
        b'{"generationConfig":{"maxOutputTokens":5},"labels":{},"cachedContent":"cachedContents/abc-1",'
        b'"contents":[{"role":"user","parts":[{"text":"Hi."}]}]}'
    )


def test_a_reference_replaces_the_previous_one() -> None:
    once = cached_content.reference_cache(Parameters(MODEL, 1), NAME)
    assert cached_content.reference_cache(once, "cachedContents/b").extra == (("cachedContent", '"cachedContents/b"'),)


@pytest.mark.parametrize("prefix", [(TOOLS, SEED), (TOOLS, SYSTEM, SEED)])
def test_a_prompt_with_a_changed_system_text_has_no_cache(prefix: tuple[Segment, ...]) -> None:
    buffer = buffer_of(*prefix, HISTORY)
    request_head = gemini.request_head(cached_content.reference_cache(Parameters(MODEL, 1), NAME))
    with pytest.raises(OrderError, match=r"layer 'memory' \(system\) comes after the prefix in the explicit cache"):
        buffer.render(request_head, start=buffer.stable_count)


def test_a_tool_choice_together_with_a_cache_is_refused() -> None:
    referring = cached_content.reference_cache(Parameters(MODEL, 1), NAME)
    for choice, extra in (('{"type":"any"}', ()), (None, (("toolConfig", "{}"),))):
        with pytest.raises(UserError, match="a tool choice cannot be combined with a cache"):
            gemini.request_head(Parameters(MODEL, 1, tool_choice_json=choice, extra=(*referring.extra, *extra)))


def test_a_cache_is_extended_and_deleted_by_its_name() -> None:
    assert cached_content.encode_delete_cache(NAME) == (Endpoint(f"/v1/{NAME}", (), "DELETE"), b"")
    assert cached_content.encode_extend_cache(NAME, ttl_seconds=90) == (
        Endpoint(f"/v1/{NAME}", JSON_HEADERS, "PATCH"),
        b'{"ttl":"90s"}',
    )


@pytest.mark.parametrize("name", ["", "abc", "cachedContents/", "cachedContents/a/b", "cachedContents/..", "x" * 500])
def test_an_invalid_cache_name_is_refused(name: str) -> None:
    for act in (
        cached_content.encode_delete_cache,
        lambda name: cached_content.reference_cache(Parameters(MODEL, 1), name),
    ):
        with pytest.raises(UserError, match="is not the name of a cache"):
            act(name)


def test_a_cache_is_decoded_as_it_was_encoded() -> None:
    unnamed = ExplicitCacheEntry("cachedContents/b", MODEL, 0, 1_800_000_000.0)
    for cache in (CACHE, unnamed):
        assert cached_content.decode_cache(cached_content.encode_cache(cache)) == cache
    page = json.loads(cached_content.encode_cache_page((CACHE, unnamed), "more"))
    assert page["nextPageToken"] == "more"
    assert [cached_content.decode_cache(json.dumps(cache).encode()) for cache in page["cachedContents"]] == [
        CACHE,
        unnamed,
    ]
    assert json.loads(cached_content.encode_cache_page(())) == {}


def test_the_providers_own_types_accept_a_cache() -> None:
    read = types.CachedContent.model_validate_json(cached_content.encode_cache(CACHE))
    assert (read.name, read.model, read.display_name) == (NAME, f"models/{MODEL}", "head")
    assert read.expire_time is not None
    assert read.expire_time.timestamp() == CACHE.expires_at
    assert read.usage_metadata is not None
    assert read.usage_metadata.total_token_count == 5000


def test_a_cache_in_the_providers_encoding_is_decoded() -> None:
    body = {
        "name": NAME,
        "model": f"models/{MODEL}",
        "createTime": "2026-11-15T10:00:00.123456789Z",
        "expireTime": "2027-01-15T08:00:00.123456789Z",
        "usageMetadata": {"totalTokenCount": -3},
    }
    read = cached_content.decode_cache(json.dumps(body).encode())
    assert (read.name, read.model, read.tokens, read.display_name) == (NAME, MODEL, 0, "")
    assert read.expires_at == pytest.approx(1_800_000_000.123456, abs=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"name":"cachedContents/a","model":"m","expireTime":"soon"}',
        b'{"name":"cachedContents/a","model":"m","expireTime":"2027-01-15T08:00:00"}',
        b'{"name":"../secret","model":"m","expireTime":"2027-01-15T08:00:00Z"}',
        b'{"name":"\xff","model":"m","expireTime":"2027-01-15T08:00:00Z"}',
        b"[" * 100_000,
    ],
)
def test_a_response_that_is_not_a_cache_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(ProviderError) as refused:
        cached_content.decode_cache(body)
    assert refused.value.kind == "server_error"
    assert len(str(refused.value).splitlines()) == 1
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "message", "is_lost"),
    [
        (403, "CachedContent not found (or permission denied)", True),
        (404, "cached content not found", True),
        (403, "Your key may not use this model.", False),
        (400, "CachedContent not found", False),
    ],
)
def test_a_lost_cache_is_recognised_by_its_error(status: int, message: str, is_lost: bool) -> None:
    _, body = gemini.encode_error("auth", message, status=status)
    assert cached_content.is_cache_missing(gemini.decode_error(status, {}, body)) == is_lost
