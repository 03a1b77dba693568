import datetime
from decimal import Decimal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import shipped_models
from holdfast.catalog.rows import Price
from holdfast.economics.cost import cost_in_units, cost_usd, uncached_cost_usd

tokens = st.integers(min_value=0, max_value=10**9)
usages = st.builds(
    Usage,
    input=tokens,
    cache_read=tokens,
    cache_write_5m=tokens,
    cache_write_1h=tokens,
    cache_write_other=tokens,
    output=tokens,
)
rates = st.decimals(min_value=0, max_value=1000, places=4)
prices = st.builds(
    Price,
    valid_from=st.just(datetime.date(2026, 1, 1)),
    input=rates,
    output=rates,
    cache_read=rates,
    cache_write_5m=rates,
    cache_write_1h=rates,
    cache_write_other=rates,
)
listed = st.sampled_from([price for model in shipped_models().values() for price in model.prices])
buckets = st.sampled_from(Usage.__struct_fields__)


@given(usages, usages, prices)
@settings(max_examples=100, deadline=None)
def test_what_two_calls_cost_is_the_sum_of_what_each_costs(one: Usage, other: Usage, price: Price) -> None:
    assert cost_usd(one + other, price) == cost_usd(one, price) + cost_usd(other, price)
    assert uncached_cost_usd(one + other, price) == (uncached_cost_usd(one, price) + uncached_cost_usd(other, price))


@given(usages, usages, listed)
@settings(max_examples=100, deadline=None)
def test_units_add_up_at_every_listed_price(one: Usage, other: Usage, price: Price) -> None:
    assert cost_in_units(one + other, price) == cost_in_units(one, price) + cost_in_units(other, price)


@given(usages, prices, buckets, tokens)
@settings(max_examples=100, deadline=None)
def test_more_tokens_never_cost_less(usage: Usage, price: Price, bucket: str, more: int) -> None:
    larger = msgspec.structs.replace(usage, **{bucket: getattr(usage, bucket) + more})
    assert cost_usd(larger, price) >= cost_usd(usage, price)
    assert uncached_cost_usd(larger, price) >= uncached_cost_usd(usage, price)


@given(usages, listed)
@settings(max_examples=100, deadline=None)
def test_units_are_dollars_over_the_price_of_an_input_token(usage: Usage, price: Price) -> None:
    prompt = msgspec.structs.replace(usage, output=0)
    assert cost_in_units(usage, price) * price.input == cost_usd(prompt, price) * 1_000_000


@given(tokens, tokens, listed)
@settings(max_examples=100, deadline=None)
def test_a_call_without_cache_costs_what_it_would_without_cache(plain: int, output: int, price: Price) -> None:
    usage = Usage(input=plain, output=output)
    assert cost_usd(usage, price) == uncached_cost_usd(usage, price)


@given(st.integers(1, 10**9), listed)
@settings(max_examples=100, deadline=None)
def test_reading_instead_of_sending_never_costs_more(read: int, price: Price) -> None:
    usage = Usage(cache_read=read)
    assert Decimal(0) < cost_usd(usage, price) <= uncached_cost_usd(usage, price)
