"""Requests of a client that wants to spend more than its key may, or to keep the gateway from serving others."""

import asyncio
import gzip
import json
import tracemalloc
from typing import Any

import pytest
from tests.gateway.test_budgets import CLOCK_START, GEMINI, MODEL, ROUTES

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.gateway.exchange import GatewayRefusedError
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.key_limits import (
    KeyBudgets,
    KeyLimits,
    KeyLimitTable,
    RequestSize,
    estimate_call_usd,
    measure_request,
)
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
