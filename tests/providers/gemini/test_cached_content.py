"""Caches that Gemini keeps on request: what is sent, and what is understood."""

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
KEPT = ExplicitCacheEntry(NAME, MODEL, 5000, 1_800_000_000.25, "head")


def scroll_of(*segments: Segment) -> RequestBuffer:
    scroll = RequestBuffer(gemini, len)
    for segment in segments:
        scroll.extend(gemini.encode_segment(segment))
    return scroll


def head_of(scroll: RequestBuffer) -> bytes:
    return scroll.cacheable_bytes()[: scroll.stable_prefix_length]


@pytest.mark.parametrize(
    ("head", "expected"),
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
def test_a_cache_is_created_of_the_bytes_that_a_request_would_have(
    head: tuple[Segment, ...], expected: dict[str, object]
) -> None:
    scroll = scroll_of(*head, HISTORY)
    cacheable = head_of(scroll)
    endpoint, body = cached_content.encode_create_cache(Parameters(MODEL, 1), cacheable, ttl_seconds=300)
    assert endpoint == Endpoint("/v1/cachedContents", JSON_HEADERS)
    assert json.loads(body) == {"model": f"models/{MODEL}", "ttl": "300s", **expected}
    assert cacheable in body
    assert cacheable in scroll.render(gemini.request_head(Parameters(MODEL, 1)))


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(MODEL, 1, tool_choice_json='{"type":"any"}'),
        Parameters(MODEL, 1, extra=(("labels", "{}"), ("toolConfig", '{"functionCallingConfig":{"mode":"ANY"}}'))),
    ],
)
def test_a_cache_has_the_tool_choice_that_its_requests_cannot_have(parameters: Parameters) -> None:
    _, body = cached_content.encode_create_cache(
        parameters, head_of(scroll_of(TOOLS)), ttl_seconds=60, display_name="head"
    )
    assert body.startswith(
        b'{"model":"models/gemini-3.8-flash","ttl":"60s","displayName":"head",'
        b'"toolConfig":{"functionCallingConfig":{"mode":"ANY"}},"tools":['
    )
    referring = cached_content.reference_cache(parameters, NAME)
    assert b"toolConfig" not in gemini.request_head(referring)
    assert referring.tool_choice_json is None


def test_an_empty_head_cannot_be_kept() -> None:
    with pytest.raises(UserError, match="nothing to cache"):
        cached_content.encode_create_cache(Parameters(MODEL, 1), head_of(scroll_of(HISTORY)), ttl_seconds=60)


@pytest.mark.parametrize("seconds", [0, -1, cached_content.TTL_SECONDS_MAX + 1])
def test_a_lifetime_that_cannot_be_is_refused(seconds: int) -> None:
    with pytest.raises(UserError, match="the TTL of a cache must be 1 to"):
        cached_content.encode_extend_cache(NAME, ttl_seconds=seconds)


def test_a_request_to_a_cache_says_only_what_the_cache_does_not() -> None:
    scroll = scroll_of(TOOLS, SYSTEM, HISTORY)
    parameters = cached_content.reference_cache(Parameters(MODEL, 5, extra=(("labels", "{}"),)), NAME)
    assert scroll.render(gemini.request_head(parameters), start=scroll.stable_count) == (
        b'{"generationConfig":{"maxOutputTokens":5},"labels":{},"cachedContent":"cachedContents/abc-1",'
        b'"contents":[{"role":"user","parts":[{"text":"Hi."}]}]}'
    )


def test_a_reference_replaces_the_one_before() -> None:
    once = cached_content.reference_cache(Parameters(MODEL, 1), NAME)
    assert cached_content.reference_cache(once, "cachedContents/b").extra == (("cachedContent", '"cachedContents/b"'),)


@pytest.mark.parametrize("head", [(TOOLS, SEED), (TOOLS, SYSTEM, SEED)])
def test_a_prompt_whose_system_text_changes_has_no_cache(head: tuple[Segment, ...]) -> None:
    scroll = scroll_of(*head, HISTORY)
    opening = gemini.request_head(cached_content.reference_cache(Parameters(MODEL, 1), NAME))
    with pytest.raises(OrderError, match=r"layer 'memory' \(system\) comes after the prefix in the explicit cache"):
        scroll.render(opening, start=scroll.stable_count)


def test_a_tool_choice_beside_a_cache_is_refused() -> None:
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
def test_what_names_no_cache_is_refused(name: str) -> None:
    for act in (
        cached_content.encode_delete_cache,
        lambda name: cached_content.reference_cache(Parameters(MODEL, 1), name),
    ):
        with pytest.raises(UserError, match="is not the name of a cache"):
            act(name)


def test_a_cache_is_read_as_it_was_written() -> None:
    unnamed = ExplicitCacheEntry("cachedContents/b", MODEL, 0, 1_800_000_000.0)
    for cache in (KEPT, unnamed):
        assert cached_content.decode_cache(cached_content.encode_cache(cache)) == cache
    page = json.loads(cached_content.encode_cache_page(cached_content.CachePage((KEPT, unnamed), "more")))
    assert page["nextPageToken"] == "more"
    assert [cached_content.decode_cache(json.dumps(cache).encode()) for cache in page["cachedContents"]] == [
        KEPT,
        unnamed,
    ]
    assert json.loads(cached_content.encode_cache_page(cached_content.CachePage(()))) == {}


def test_the_providers_own_types_understand_a_cache() -> None:
    read = types.CachedContent.model_validate_json(cached_content.encode_cache(KEPT))
    assert (read.name, read.model, read.display_name) == (NAME, f"models/{MODEL}", "head")
    assert read.expire_time is not None
    assert read.expire_time.timestamp() == KEPT.expires_at
    assert read.usage_metadata is not None
    assert read.usage_metadata.total_token_count == 5000


def test_a_cache_as_the_provider_writes_it_is_read() -> None:
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
def test_what_is_no_cache_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(ProviderError) as refused:
        cached_content.decode_cache(body)
    assert refused.value.kind == "server_error"
    assert len(str(refused.value).splitlines()) == 1
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "message", "lost"),
    [
        (403, "CachedContent not found (or permission denied)", True),
        (404, "cached content not found", True),
        (403, "Your key may not use this model.", False),
        (400, "CachedContent not found", False),
    ],
)
def test_a_cache_that_is_lost_is_known_by_its_error(status: int, message: str, lost: bool) -> None:
    _, body = gemini.encode_error("auth", message, status=status)
    assert cached_content.is_cache_missing(gemini.decode_error(status, {}, body)) == lost
