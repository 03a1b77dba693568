"""Requests of a client that wants to spend more than its key may, or to keep the gateway from serving others."""

import asyncio
import gzip
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.gateway.test_budgets import CLOCK_START, GEMINI, MODEL, ROUTES, TODAY, answer, new_key, post, today
from tests.support.served_gateway import raw_upstream, serve_gateway

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.gateway.exchange import Exchange, GatewayCaller, GatewayRefusedError, Message, prepare_request
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.key_limits import (
    KeyBudgets,
    KeyLimits,
    KeyLimitTable,
    RequestSize,
    estimate_call_usd,
    measure_request,
)
from holdfast.gateway.recording.exchange_decode import decode_exchange_request
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.websocket_calls import ResponsePrompts, decode_create_message
from holdfast.providers import json_splice
from holdfast.providers.registry import get_adapter
from holdfast.stores.memory import MemoryStore

MESSAGES = "/anthropic/v1/messages"
CHAT = "/openai/v1/chat/completions"


def estimate(body: object, path: str = MESSAGES, *, headers: Headers | None = None) -> float:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = measure_request(raw, headers or [])
    return estimate_call_usd(ROUTES.find_target(path), request, shipped_models(), at=CLOCK_START, usual_output_tokens=0)


@pytest.mark.parametrize("value", [64_000.0, "64000", "64000.0"])
@pytest.mark.parametrize(
    ("path", "make_body"),
    [
        (MESSAGES, lambda tokens: {"model": MODEL, "max_tokens": tokens}),
        (GEMINI, lambda tokens: {"generationConfig": {"maxOutputTokens": tokens}}),
        (CHAT, lambda tokens: {"model": "gpt-5.2", "max_tokens": 1_000, "n": tokens}),
    ],
)
def test_a_number_counts_in_every_form_that_providers_take_for_one(path: str, make_body: Any, value: object) -> None:
    """Google reads numbers in quotes, and others whole numbers with a fraction of zero."""
    assert estimate(make_body(value), path) == pytest.approx(estimate(make_body(64_000), path), rel=0.01)


def test_encodings_that_are_listed_in_several_headers_are_all_decoded() -> None:
    body = gzip.compress(json.dumps({"model": MODEL, "max_tokens": 1, "messages": ["x" * 1_000_000]}).encode())
    several: Headers = [(b"content-encoding", b"identity"), (b"content-encoding", b"gzip")]
    assert estimate(body, headers=several) == estimate(body, headers=[(b"content-encoding", b"identity, gzip")]) > 0.5


def test_a_path_that_is_cut_where_it_is_recorded_is_not_taken_for_a_free_one() -> None:
    start = "/v1/" + "a/" * 31
    path = f"/openai{start}{'a' * (80 - len(start) - len('/count_tokens'))}/count_tokens/chat/completions"
    assert estimate({"model": "gpt-5.2", "max_tokens": 1_000}, path) > 0.01


def test_a_request_with_many_members_is_estimated_without_decoding_them() -> None:
    """All calls of the gateway would wait until a million of them are decoded."""
    members = b",".join(b'"%d":{}' % number for number in range(200_000))
    body = b'{"model":"gpt-5.2","generationConfig":{%s},%s,"max_tokens":1000}' % (members, members)
    target, limits = ROUTES.find_target(CHAT), KeyLimitTable({"*": KeyLimits(models=("gpt-*",))}, {})
    compressed = gzip.compress(body)
    tracemalloc.start()
    try:
        limits.check_model("any", target, RequestSize(len(body), body))
        assert estimate(body, CHAT) > 0.01
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body)
        tracemalloc.reset_peak()
        assert measure_request(compressed, [(b"content-encoding", b"gzip")]).size_bytes == len(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def test_calls_of_yesterday_that_are_still_in_progress_count_against_the_month() -> None:
    """Else a key could use what is left of its month a second time, around midnight."""
    store, clock = MemoryStore(), ManualClock()
    limits = KeyLimitTable({"*": KeyLimits(budget_usd_a_month=0.02)}, {})
    budgets = KeyBudgets(limits, store.records, shipped_models(), clock=clock)
    request = RequestSize(0, json.dumps({"model": MODEL, "max_tokens": 500}).encode())

    async def call_around_midnight() -> None:
        target = ROUTES.find_target(MESSAGES)
        clock.advance(86_400 - clock() % 86_400 - 1)
        await budgets.reserve("yesterday 1", "key", target, request)
        await budgets.reserve("yesterday 2", "key", target, request)
        clock.advance(2)
        await budgets.reserve("today 1", "key", target, request)
        with pytest.raises(GatewayRefusedError, match=r"no room for this call .* spent \$0.0000, reserved \$0.0150"):
            await budgets.reserve("today 2", "key", target, request)

    try:
        asyncio.run(call_around_midnight())
    finally:
        budgets.close()


CACHES = "/gemini/v1beta/cachedContents"
WEEK = 7 * 86_400


def create_cache(**more: object) -> dict[str, object]:
    return {"model": "models/gemini-2.5-pro", "contents": [{"parts": [{"text": "word " * 60_000}]}], **more}


def test_an_explicit_cache_reserves_its_storage_until_its_end() -> None:
    hour = estimate(create_cache(), CACHES)
    assert estimate(create_cache(ttl="3600s"), CACHES) == pytest.approx(hour, rel=0.01)
    assert estimate(create_cache(ttl=f"{WEEK}s"), CACHES) > 20 * hour
    end = datetime.fromtimestamp(CLOCK_START + WEEK, UTC).isoformat()
    for name in ("expireTime", "expire_time"):
        assert estimate(create_cache(**{name: end}), CACHES) == pytest.approx(
            estimate(create_cache(ttl=f"{WEEK}s"), CACHES), rel=0.01
        )
    for ttl in ("nans", "infs", "9" * 400 + "s"):
        assert estimate(create_cache(ttl=ttl), CACHES) > estimate(create_cache(ttl=f"{WEEK}s"), CACHES)


@pytest.mark.parametrize(
    ("model", "prompt", "hour"),
    [
        ("gemini-2.5-pro", 1.25, 4.5),
        # Of one no price of storage is known, and of the other none at all: $10 for a million tokens.
        ("gemini-3-pro-preview", 2.0, 10.0),
        ("gemini-of-tomorrow", 10.0, 10.0),
    ],
)
def test_an_explicit_cache_that_a_client_creates_is_charged_with_its_storage(
    model: str, prompt: float, hour: float
) -> None:
    clock, store = ManualClock(), MemoryStore()
    key, key_id = new_key(store)
    grants = {"*": KeyLimits(provider_keys={"gemini": "sk-any"}, budget_usd_a_day=500.0)}
    ends = [datetime.fromtimestamp(clock() + seconds, UTC).isoformat() for seconds in (3_600, WEEK)]
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, clock=clock, grants=grants) as gateway:
        spent: list[float] = []
        for number, end in enumerate(ends):
            cache = {"name": f"cachedContents/{number}", "model": f"models/{model}", "expireTime": end}
            answer(upstream, {**cache, "usageMetadata": {"totalTokenCount": 60_000}})
            assert post(gateway.url, key, create_cache(model=f"models/{model}"), CACHES).status_code == 200
            gateway.recorded_sessions()
            row = store.records.get_budget_day(key_id, TODAY)
            assert row.reserved == 0
            spent.append(row.spent / 10**12 - sum(spent))
        # 60,000 tokens are written and stored for an hour, then for a week.
        assert spent == pytest.approx([0.06 * (prompt + hour), 0.06 * (prompt + 168 * hour)], rel=0.01)
        # Its life is extended only by who may.
        path = f"{gateway.url}{CACHES}/1"
        assert httpx.patch(path, json={"ttl": f"{WEEK}s"}, headers={"x-api-key": key}).status_code == 403
        assert httpx.get(path, headers={"x-api-key": key}).status_code == 200


def test_an_explicit_cache_whose_description_does_not_arrive_costs_what_was_reserved() -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    grants = {"*": KeyLimits(provider_keys={"gemini": "sk-any"}, budget_usd_a_day=500.0)}
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=grants) as gateway:
        upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",)
        with pytest.raises(httpx.RemoteProtocolError):
            post(gateway.url, key, create_cache(ttl=f"{WEEK}s"), CACHES)
        gateway.recorded_sessions()
    assert today(store, key_id).reserved > 10 * 10**12


def make_exchange(body: bytes, path: str = MESSAGES) -> Exchange:
    exchange = Exchange(ROUTES.find_target(path), [], GatewayCaller("account"), CLOCK_START)
    exchange.add_request_bytes(body)
    return exchange


MANY = {
    "members": b'{"model":"m",%s}' % b",".join(b'"%d":1' % number for number in range(2_000)),
    "blocks": b'{"model":"m","messages":[{"role":"user","content":[%s]}]}' % b",".join([b'{"type":"text"}'] * 2_000),
    "numbers": b'{"model":"m","messages":[%s]}' % b",".join([b"7"] * 2_000),
    "texts that do not end": b"," * 2_000 + b'"' + b'\\"' * 1_000_000,
}


@pytest.mark.parametrize("name", MANY)
def test_a_request_of_very_many_values_is_not_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MiB of them took the recorder a minute and 1.8 GB, and with --improve the gateway."""
    monkeypatch.setattr(json_splice, "JSON_VALUES_MAX", 1_000)
    decoded = decode_exchange_request(get_adapter("anthropic"), make_exchange(MANY[name]))
    assert decoded.body == b""
    assert "values" in decoded.request.unreadable[0]
    rewriter = ConversationRewriter(shipped_models())

    async def receive() -> Message:
        return {"type": "http.request", "body": MANY[name]}

    assert asyncio.run(prepare_request(rewriter, make_exchange(b""), [], receive)).analysis is None
    message = decode_create_message(MANY[name], ResponsePrompts(), "account")
    assert message is not None
    assert not message.prompt.is_whole


def test_commas_in_the_texts_of_a_request_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_splice, "JSON_VALUES_MAX", 1_000)
    text = 'Salt, "pepper", ' * 1_000
    body = json.dumps({"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}).encode()
    assert not decode_exchange_request(get_adapter("anthropic"), make_exchange(body)).request.unreadable


@pytest.mark.parametrize(
    ("models", "is_allowed"),
    [
        (["cheap/one", "cheap/two"], True),
        ([], True),
        (None, True),
        (["cheap/one", "large/one"], False),
        ("large/one", False),
        ([{"model": "large/one"}], False),
    ],
)
def test_models_that_a_host_may_fall_back_to_have_to_be_allowed_too(models: object, is_allowed: bool) -> None:
    """OpenRouter takes them from a list, if the model cannot answer."""
    limits = KeyLimitTable({"*": KeyLimits(models=("cheap/*",))}, {})
    target = ROUTES.find_target("/openrouter/v1/chat/completions")
    raw = json.dumps({"model": "cheap/one", "models": models}).encode()
    if is_allowed:
        limits.check_model("any", target, RequestSize(len(raw), raw))
        return
    with pytest.raises(GatewayRefusedError, match="this key is not for"):
        limits.check_model("any", target, RequestSize(len(raw), raw))
