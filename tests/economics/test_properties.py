"""Each inequality compared with the bill of both alternatives, computed call by call."""

import datetime
import itertools
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.catalog.lookup import price_at, shipped_models
from holdfast.catalog.schema import Price
from holdfast.economics.breakeven import (
    IdleShares,
    PaddingOutlook,
    anchor_pays,
    explicit_cache_pays,
    hour_ttl_pays,
    padding_pays,
)
from holdfast.economics.cost import CostComparison, price_multipliers
from holdfast.economics.keep_alive import (
    LONG_WAIT_SECONDS,
    WAKE_MARGIN_SECONDS,
    best_ping_count,
    pings_max,
    plan_wake,
    upgrade_ping_pays,
)

TODAY = datetime.date(2026, 11, 15)
EXPLICIT_PRICES = [price_at(model, TODAY, 1) for model in shipped_models().values() if model.cache.kind == "explicit"]
STORAGE_PRICES = [price_at(model, TODAY, 1) for model in shipped_models().values() if model.cache.explicit_tokens_min]
ALL_PRICES = [price_at(model, TODAY, 1) for model in shipped_models().values()]

prices = st.sampled_from(EXPLICIT_PRICES)
tokens = st.integers(1, 200_000)
few_calls = st.integers(1, 40)
idle_minutes = st.lists(st.sampled_from([1, 4, 6, 30, 59, 61, 600]), min_size=1, max_size=30)


def shares_of(minutes: list[int]) -> IdleShares:
    short = sum(idle <= 5 for idle in minutes)
    long = sum(idle > 60 for idle in minutes)
    count = Decimal(len(minutes))
    return IdleShares(short / count, (len(minutes) - short - long) / count, long / count)


def close(first: Decimal, second: Decimal) -> bool:
    return abs(first - second) <= Decimal("1e-15") * max(abs(first), abs(second), Decimal(1))


def agrees_with_bills(comparison: CostComparison, first: Decimal, second: Decimal) -> bool:
    """Both costs are right, and the decision is that of the bills, unless they are equal but for rounding."""
    right = close(comparison.first_units, first) and close(comparison.second_units, second)
    return right and (bool(comparison) == (first < second) or close(first, second))


@given(prices, tokens, st.integers(1, 5_000), idle_minutes, st.integers(0, 10))
def test_an_anchor_pays_by_the_mean_over_idle_times_and_provider_behaviours(
    price: Price, prefix: int, tail: int, idle_times: list[int], tenths: int
) -> None:
    times = price_multipliers(price)
    anchored = plain = Decimal(0)
    for idle, upgrades in itertools.product(idle_times, [True] * tenths + [False] * (10 - tenths)):
        alive = idle <= 5 or (idle <= 60 and upgrades)
        anchored += tail * times.write_1h + (prefix + tail) * (times.read if alive else times.write_5m)
        plain += tail * times.write_5m + (prefix + tail) * (times.read if idle <= 5 else times.write_5m)
    cases = len(idle_times) * 10
    comparison = anchor_pays(
        prefix + tail, tail, shares_of(idle_times), upgrade_probability=Decimal(tenths) / 10, times=times
    )
    assert agrees_with_bills(comparison, anchored / cases, plain / cases)


@given(prices, tokens, st.integers(1, 5_000), idle_minutes)
def test_an_anchor_never_pays_without_ttl_upgrades(price: Price, prefix: int, tail: int, idle_times: list[int]) -> None:
    assert not anchor_pays(
        prefix + tail, tail, shares_of(idle_times), upgrade_probability=0, times=price_multipliers(price)
    )


@given(prices, tokens, st.integers(0, 5_000), st.integers(0, 9), st.integers(0, 10))
def test_one_hour_ttls_pay_by_the_mean_over_provider_behaviours_pause_after_pause(
    price: Price, held: int, written: int, pauses: int, tenths: int
) -> None:
    times = price_multipliers(price)
    hours, short = written * times.write_1h, written * times.write_5m
    for upgrades, _ in itertools.product(range(10), range(pauses)):
        # With TTL upgrades an anchor does the same, so neither alternative is charged.
        hours += Decimal(0) if upgrades < tenths else held * times.read / 10
        short += Decimal(0) if upgrades < tenths else held * times.write_5m / 10
    assert agrees_with_bills(
        hour_ttl_pays(held, written, pauses, upgrade_probability=Decimal(tenths) / 10, times=times), hours, short
    )


@given(prices, tokens, st.integers(0, 5_000), st.integers(0, 20), st.integers(0, 10), st.integers(0, 20), st.data())
def test_an_upgrade_ping_pays_by_the_mean_over_returns_and_provider_behaviours(
    price: Price, prefix: int, reply: int, returns: int, tenths: int, closing: int, data: st.DataObject
) -> None:
    times = price_multipliers(price)
    held = data.draw(st.integers(0, prefix))
    pinged = ignored = Decimal(0)
    for back, upgrades in itertools.product(range(20), range(10)):
        pinged += prefix * times.read + reply * times.write_1h + closing
        if back < returns:
            # Tokens that another entry holds are read either way.
            expiring = prefix + reply - held
            pinged += expiring * (times.read if upgrades < tenths else times.write_5m)
            ignored += expiring * times.write_5m
    comparison = upgrade_ping_pays(
        prefix,
        reply,
        Decimal(returns) / 20,
        upgrade_probability=Decimal(tenths) / 10,
        times=times,
        closing_tokens=closing,
        held_tokens=held,
    )
    assert agrees_with_bills(comparison, pinged / 200, ignored / 200)


@given(prices, st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_no_other_number_of_pings_is_cheaper_than_the_best_one(price: Price, weights: list[int]) -> None:
    times = price_multipliers(price)
    cases = Decimal(max(sum(weights), 60))
    shares = [weight / cases for weight in weights]

    def bill(pings: int) -> Decimal:
        cost = Decimal(0)
        for window, weight in enumerate(weights):
            sent = min(pings, window + 1)
            cost += weight * (sent * times.read + (times.read if window < pings else times.write_5m))
        never = cases - sum(weights)
        return cost + never * pings * times.read

    stop = best_ping_count(shares, read=times.read, write=times.write_5m)
    assert close(bill(stop.pings), min(bill(pings) for pings in range(len(weights) + 1)))
    assert close(stop.saved_units * cases, bill(0) - bill(stop.pings))


@given(prices, st.lists(st.integers(0, 12), min_size=1, max_size=8), tokens, st.data())
def test_pings_save_nothing_for_tokens_that_another_entry_holds(
    price: Price, weights: list[int], prompt: int, data: st.DataObject
) -> None:
    times = price_multipliers(price)
    shares = [weight / Decimal(100) for weight in weights]
    held = data.draw(st.integers(0, prompt))
    unheld = best_ping_count(shares, read=times.read, write=times.write_5m, prompt_tokens=prompt)
    partly = best_ping_count(shares, read=times.read, write=times.write_5m, prompt_tokens=prompt, held_tokens=held)
    assert partly.saved_units <= unheld.saved_units
    assert best_ping_count(shares, read=times.read, write=times.write_5m, held_tokens=1).pings == 0


@pytest.mark.parametrize("price", EXPLICIT_PRICES)
def test_a_certain_return_pays_for_the_maximum_number_of_pings_and_not_for_one_more(price: Price) -> None:
    times = price_multipliers(price)
    ping_count_max = pings_max(read=times.read, write=times.write_5m)
    assert ping_count_max is not None
    assert ping_count_max * times.read < times.write_5m - times.read <= (ping_count_max + 1) * times.read


def test_free_pings_have_no_limit() -> None:
    assert pings_max(read=Decimal(0), write=Decimal("1.25")) is None


def test_one_more_ping_pays_only_while_a_return_is_likely_enough() -> None:
    read, write = Decimal("0.1"), Decimal("1.25")
    assert best_ping_count([0.0, 0.0, 0.5], read=read, write=write).pings == 3
    assert best_ping_count([0.0, 0.0, 0.1], read=read, write=write).pings == 0
    assert best_ping_count([0.5, 0.0, 0.01], read=read, write=write).pings == 1


@given(prices, st.integers(1, 6_000), st.integers(0, 3_000), st.integers(1, 4_096), few_calls, st.integers(0, 900))
def test_padding_pays_if_the_padded_session_is_cheaper_call_by_call(
    price: Price, natural: int, added: int, tokens_min: int, calls: int, growth: int
) -> None:
    times = price_multipliers(price)

    def bill(prefix: int) -> Decimal:
        cost, cached = Decimal(0), 0
        for call in range(calls):
            prompt = prefix + growth * call
            if prompt < tokens_min:
                cost += prompt
            else:
                cost += cached * times.read + (prompt - cached) * times.write_5m
                cached = prompt
        return cost

    padded = max(natural + added, tokens_min)
    comparison = padding_pays(
        natural,
        padded,
        floor_tokens=tokens_min,
        ahead=PaddingOutlook(calls, growth),
        read=times.read,
        write=times.write_5m,
    )
    assert agrees_with_bills(comparison, bill(padded), bill(natural))


@given(prices, st.integers(1, 4_095), st.integers(0, 2_000), st.integers(1, 500))
def test_without_growth_padding_pays_beyond_the_number_of_calls_of_the_inequality(
    price: Price, natural: int, over: int, calls: int
) -> None:
    times = price_multipliers(price)
    padded = 4_096 + over
    padding = padding_pays(
        natural, padded, floor_tokens=4_096, ahead=PaddingOutlook(calls), read=times.read, write=times.write_5m
    )
    saved_per_call = natural - times.read * padded
    # N > (w - r) P / (S - r P), without the division.
    assert bool(padding) == (saved_per_call > 0 and calls * saved_per_call > (times.write_5m - times.read) * padded)


@pytest.mark.parametrize(
    ("natural", "calls"), [(265, None), (500, None), (1_000, 16), (1_500, 7), (2_000, 5), (4_000, 2)]
)
def test_the_seeds_padding_never_pays_for_a_bare_prompt(natural: int, calls: int | None) -> None:
    rates = {"read": Decimal("0.1"), "write": Decimal("1.25")}
    paying = [
        count
        for count in range(1, 1_000)
        if padding_pays(natural, 5_670, floor_tokens=5_670, ahead=PaddingOutlook(count), **rates)
    ]
    assert (paying[0] if paying else None) == calls


@given(st.sampled_from(STORAGE_PRICES), st.integers(0, 200), st.integers(1, 48), st.booleans())
def test_an_explicit_cache_pays_if_it_costs_fewer_dollars(
    price: Price, reads: int, half_hours: int, is_created: bool
) -> None:
    with_cache = (0 if is_created else price.input) + price.storage_per_hour * half_hours / 2 + reads * price.cache_read
    plain = reads * price.input
    comparison = explicit_cache_pays(price, reads_expected=reads, hours=Decimal(half_hours) / 2, made=is_created)
    assert agrees_with_bills(comparison, with_cache / price.input, plain / price.input)


@given(prices, tokens, st.integers(0, 300_000), st.floats(-100, 4_000))
def test_the_next_wake_is_within_the_ttl_or_after_a_long_wait_with_the_cost_of_both(
    price: Price, prompt: int, cached: int, warm_seconds: float
) -> None:
    wake = plan_wake(
        prompt_tokens=prompt,
        cached_tokens=cached,
        warm_seconds=warm_seconds,
        read_usd=price.cache_read,
        write_usd=price.cache_write_5m,
    )
    assert wake.or_after_seconds >= LONG_WAIT_SECONDS
    assert wake.cold_usd * 1_000_000 == prompt * price.cache_write_5m
    if wake.within_seconds:
        assert wake.within_seconds == warm_seconds - WAKE_MARGIN_SECONDS
        assert wake.or_after_seconds >= warm_seconds
        held = min(prompt, cached)
        assert wake.warm_usd * 1_000_000 == held * price.cache_read + (prompt - held) * price.cache_write_5m
        assert wake.warm_usd < wake.cold_usd
    else:
        assert warm_seconds <= WAKE_MARGIN_SECONDS or not cached
        assert wake.warm_usd == wake.cold_usd
        assert wake.warm_wakes_max == 0


def test_both_wake_times_are_described_in_one_sentence() -> None:
    rates = {"read_usd": Decimal("0.3"), "write_usd": Decimal("3.75")}
    warm = plan_wake(prompt_tokens=100_000, cached_tokens=100_000, warm_seconds=300, **rates)
    assert str(warm) == "come back within 285 s for $0.0300, or after 20 min or more for $0.3750"
    assert warm.warm_wakes_max == 11
    cold = plan_wake(prompt_tokens=100_000, cached_tokens=0, warm_seconds=300, **rates)
    assert str(cold) == "nothing is warm: come back after 20 min or more for $0.3750"


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_saving_of_a_choice_is_the_difference_of_its_costs(first: float, second: float) -> None:
    assume(first != second)
    comparison = CostComparison(Decimal(first), Decimal(second))
    assert bool(comparison) == (comparison.saved_units > 0)
