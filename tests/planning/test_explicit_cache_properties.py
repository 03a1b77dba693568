"""When a prefix gets an explicit cache: only if that is cheaper, or requested at any cost."""

import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.lookup import find_model, price_at
from holdfast.catalog.schema import CacheRules, Price
from holdfast.economics.cost import storage_usd
from holdfast.planning.explicit_cache import (
    CreateCache,
    ExplicitCacheConfig,
    ExplicitCacheState,
    ExplicitCacheStep,
    ExtendCache,
    SkipCache,
    UseCache,
    WantedPrefix,
    estimate_reads,
    plan_explicit_cache,
)

FLASH = find_model("gemini:gemini-3.8-flash")
PRICE = price_at(FLASH, datetime.date(2026, 11, 15), 10_000)
WANTED = WantedPrefix(FLASH.id, "d1", 10_000)
NOW = 1_000_000.0

amounts = st.decimals(0, 5, places=2)
prices = st.builds(
    lambda plain, read, hour: Price(
        datetime.date(2026, 1, 1), plain, Decimal(1), min(read, plain), plain, plain, plain, storage_per_hour=hour
    ),
    amounts,
    amounts,
    amounts,
)


def plan_step(
    cache: ExplicitCacheState | None = None,
    wanted: WantedPrefix = WANTED,
    config: ExplicitCacheConfig = ExplicitCacheConfig(),  # noqa: B008 - a frozen value
    *,
    calls: int = 10,
    rules: CacheRules = FLASH.cache,
    price: Price = PRICE,
) -> ExplicitCacheStep:
    return plan_explicit_cache(cache, wanted, config, rules=rules, price=price, uncached_calls=calls, at=NOW)


def make_cache(*, seconds: float = 3000, digest: str = "d1", model: str = FLASH.id) -> ExplicitCacheState:
    return ExplicitCacheState("cachedContents/1", model, digest, 10_000, NOW + seconds)


@given(prices, st.integers(0, 50), st.integers(1, 10_000))
def test_a_cache_is_created_exactly_if_as_many_reads_again_pay_for_it(price: Price, calls: int, seconds: int) -> None:
    planned = plan_step(config=ExplicitCacheConfig(seconds), calls=calls, price=price)
    tokens, million = WANTED.tokens, Decimal(1_000_000)
    without_cache = calls * tokens * price.input / million
    with_cache = tokens * price.input / million + storage_usd(tokens, seconds, price)
    assert isinstance(planned, CreateCache) == (
        with_cache + calls * tokens * price.cache_read / million < without_cache
    )


@given(st.integers(0, 50), st.just(0.0) | st.floats(0.001, 1e6), st.integers(1, 10_000))
def test_expected_reads_are_bounded_by_past_calls_and_by_their_rate(calls: int, seconds: float, ttl: int) -> None:
    reads = estimate_reads(calls, seconds, ttl)
    assert 0 <= reads <= calls
    if calls > 1 and seconds > 0:
        idle_seconds = seconds / (calls - 1)
        assert float(reads) == pytest.approx(min(calls, ttl / idle_seconds))
    else:
        assert reads == calls


def test_two_uncached_calls_make_an_explicit_cache_of_a_flash_model_pay() -> None:
    assert [type(plan_step(calls=calls)) for calls in range(4)] == [SkipCache, SkipCache, CreateCache, CreateCache]


@given(st.integers(0, 4095))
def test_no_explicit_cache_is_created_below_the_minimum(tokens: int) -> None:
    small = WantedPrefix(FLASH.id, "d1", tokens)
    assert plan_step(wanted=small, config=ExplicitCacheConfig(always=True), calls=1000) == SkipCache(
        f"{tokens} tokens are below the floor of 4096"
    )


def test_a_matching_cache_is_used_until_a_quarter_of_its_ttl_is_left() -> None:
    assert plan_step(make_cache(seconds=900)) == UseCache(make_cache(seconds=900))
    assert plan_step(make_cache(seconds=899.5)) == ExtendCache(make_cache(seconds=899.5), "900 s are left of 3600 s")


def test_extending_costs_only_storage_and_must_pay_too() -> None:
    assert isinstance(plan_step(make_cache(seconds=1), calls=0), UseCache)
    assert isinstance(plan_step(make_cache(seconds=1), calls=1), ExtendCache)
    assert isinstance(plan_step(make_cache(seconds=1), config=ExplicitCacheConfig(always=True), calls=0), ExtendCache)


def test_an_expired_cache_is_treated_as_none() -> None:
    assert plan_step(make_cache(seconds=0), calls=1) == plan_step(None, calls=1)
    assert isinstance(plan_step(make_cache(seconds=0)), CreateCache)


def test_another_prefix_or_model_replaces_the_old_cache() -> None:
    for old in (make_cache(digest="d0"), make_cache(model="gemini:gemini-3.6-flash")):
        planned = plan_step(old)
        assert isinstance(planned, CreateCache)
        assert planned.replaces == old
        assert plan_step(old, calls=0) == SkipCache(
            "too few reads expected to pay for it: 0 uncached calls so far", delete=old
        )


def test_disabling_explicit_caches_deletes_the_existing_one() -> None:
    off = ExplicitCacheConfig(ttl_seconds=0, always=True)
    assert plan_step(make_cache(), config=off) == SkipCache("explicit caches are turned off", delete=make_cache())
    assert plan_step(None, config=off) == SkipCache("explicit caches are turned off")


def test_a_model_without_explicit_caches_gets_none() -> None:
    argon = find_model("gemini:gemini-4-argon")
    assert plan_step(rules=argon.cache, config=ExplicitCacheConfig(always=True)) == SkipCache(
        "the model has no explicit caches"
    )


def test_an_explicit_cache_requested_at_any_cost_is_created_with_the_first_call() -> None:
    planned = plan_step(config=ExplicitCacheConfig(always=True), calls=0)
    assert isinstance(planned, CreateCache)
    assert planned.reason == (
        "10000 tokens for $0.007500 and $0.005000 of storage; each read saves $0.006750, and as many reads are "
        "expected as there were uncached calls (0)"
    )
