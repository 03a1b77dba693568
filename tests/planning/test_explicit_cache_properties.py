"""When a prefix is kept under a name: only where that is cheaper, or was asked for whatever it costs."""

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


def step(
    kept: ExplicitCacheState | None = None,
    wanted: WantedPrefix = WANTED,
    keeping: ExplicitCacheConfig = ExplicitCacheConfig(),  # noqa: B008 - a frozen value
    *,
    calls: int = 10,
    rules: CacheRules = FLASH.cache,
    price: Price = PRICE,
) -> ExplicitCacheStep:
    return plan_explicit_cache(kept, wanted, keeping, rules=rules, price=price, uncached_calls=calls, at=NOW)


def kept(*, seconds: float = 3000, digest: str = "d1", model: str = FLASH.id) -> ExplicitCacheState:
    return ExplicitCacheState("cachedContents/1", model, digest, 10_000, NOW + seconds)


@given(prices, st.integers(0, 50), st.integers(1, 10_000))
def test_a_cache_is_made_exactly_where_as_many_reads_again_pay_for_it(price: Price, calls: int, seconds: int) -> None:
    found = step(keeping=ExplicitCacheConfig(seconds), calls=calls, price=price)
    tokens, million = WANTED.tokens, Decimal(1_000_000)
    without = calls * tokens * price.input / million
    made = tokens * price.input / million + storage_usd(tokens, seconds, price)
    assert isinstance(found, CreateCache) == (made + calls * tokens * price.cache_read / million < without)


@given(st.integers(0, 50), st.just(0.0) | st.floats(0.001, 1e6), st.integers(1, 10_000))
def test_no_more_reads_are_expected_than_came_and_than_their_rhythm_has_room_for(
    calls: int, seconds: float, ttl: int
) -> None:
    reads = estimate_reads(calls, seconds, ttl)
    assert 0 <= reads <= calls
    if calls > 1 and seconds > 0:
        gap = seconds / (calls - 1)
        assert float(reads) == pytest.approx(min(calls, ttl / gap))
    else:
        assert reads == calls


def test_two_uncached_calls_make_the_cache_of_a_flash_model_pay() -> None:
    assert [type(step(calls=calls)) for calls in range(4)] == [SkipCache, SkipCache, CreateCache, CreateCache]


@given(st.integers(0, 4095))
def test_nothing_is_kept_below_the_floor_whatever_it_saves(tokens: int) -> None:
    small = WantedPrefix(FLASH.id, "d1", tokens)
    assert step(wanted=small, keeping=ExplicitCacheConfig(always=True), calls=1000) == SkipCache(
        f"{tokens} tokens are below the floor of 4096"
    )


def test_a_cache_that_fits_is_used_until_a_quarter_of_its_time_is_left() -> None:
    assert step(kept(seconds=900)) == UseCache(kept(seconds=900))
    assert step(kept(seconds=899.5)) == ExtendCache(kept(seconds=899.5), "900 s are left of 3600 s")


def test_extending_costs_storage_alone_and_has_to_pay_too() -> None:
    assert isinstance(step(kept(seconds=1), calls=0), UseCache)
    assert isinstance(step(kept(seconds=1), calls=1), ExtendCache)
    assert isinstance(step(kept(seconds=1), keeping=ExplicitCacheConfig(always=True), calls=0), ExtendCache)


def test_a_lapsed_cache_is_as_good_as_none() -> None:
    assert step(kept(seconds=0), calls=1) == step(None, calls=1)
    assert isinstance(step(kept(seconds=0)), CreateCache)


def test_another_prefix_or_model_takes_the_place_of_the_old_one() -> None:
    for old in (kept(digest="d0"), kept(model="gemini:gemini-3.6-flash")):
        found = step(old)
        assert isinstance(found, CreateCache)
        assert found.replaces == old
        assert step(old, calls=0) == SkipCache(
            "too few reads expected to pay for it: 0 uncached calls so far", delete=old
        )


def test_turned_off_means_that_what_there_is_goes() -> None:
    off = ExplicitCacheConfig(ttl_seconds=0, always=True)
    assert step(kept(), keeping=off) == SkipCache("explicit caches are turned off", delete=kept())
    assert step(None, keeping=off) == SkipCache("explicit caches are turned off")


def test_a_model_without_named_caches_gets_none() -> None:
    argon = find_model("gemini:gemini-4-argon")
    assert step(rules=argon.cache, keeping=ExplicitCacheConfig(always=True)) == SkipCache(
        "the model has no explicit caches"
    )


def test_asked_for_whatever_it_costs_it_is_made_with_the_first_call() -> None:
    found = step(keeping=ExplicitCacheConfig(always=True), calls=0)
    assert isinstance(found, CreateCache)
    assert found.reason == (
        "10000 tokens for $0.007500 and $0.005000 of storage; each read saves $0.006750, and as many reads are "
        "expected as there were uncached calls (0)"
    )
