"""Each inequality against the bill of both alternatives, made out call by call."""

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
MARKED = [price_at(model, TODAY, 1) for model in shipped_models().values() if model.cache.kind == "explicit"]
STORED = [price_at(model, TODAY, 1) for model in shipped_models().values() if model.cache.explicit_tokens_min]
EVERY = [price_at(model, TODAY, 1) for model in shipped_models().values()]

prices = st.sampled_from(MARKED)
tokens = st.integers(1, 200_000)
few_calls = st.integers(1, 40)
gap_minutes = st.lists(st.sampled_from([1, 4, 6, 30, 59, 61, 600]), min_size=1, max_size=30)


def shares_of(minutes: list[int]) -> IdleShares:
    short = sum(gap <= 5 for gap in minutes)
    long = sum(gap > 60 for gap in minutes)
    count = Decimal(len(minutes))
    return IdleShares(short / count, (len(minutes) - short - long) / count, long / count)


def close(first: Decimal, second: Decimal) -> bool:
    return abs(first - second) <= Decimal("1e-15") * max(abs(first), abs(second), Decimal(1))


def agrees(told: CostComparison, first: Decimal, second: Decimal) -> bool:
    """Both costs are right, and the verdict is that of the bills, unless they are equal but for rounding."""
    right = close(told.first_units, first) and close(told.second_units, second)
    return right and (bool(told) == (first < second) or close(first, second))


@given(prices, tokens, st.integers(1, 5_000), gap_minutes, st.integers(0, 10))
def test_an_anchor_pays_by_the_mean_over_gaps_and_truths(
    price: Price, prefix: int, tail: int, gaps: list[int], tenths: int
) -> None:
    times = price_multipliers(price)
    anchored = plain = Decimal(0)
    for gap, upgrades in itertools.product(gaps, [True] * tenths + [False] * (10 - tenths)):
        alive = gap <= 5 or (gap <= 60 and upgrades)
        anchored += tail * times.write_1h + (prefix + tail) * (times.read if alive else times.write_5m)
        plain += tail * times.write_5m + (prefix + tail) * (times.read if gap <= 5 else times.write_5m)
    cases = len(gaps) * 10
    told = anchor_pays(prefix + tail, tail, shares_of(gaps), upgrade_probability=Decimal(tenths) / 10, times=times)
    assert agrees(told, anchored / cases, plain / cases)


@given(prices, tokens, st.integers(1, 5_000), gap_minutes)
def test_an_anchor_never_pays_where_lifetimes_do_not_upgrade(
    price: Price, prefix: int, tail: int, gaps: list[int]
) -> None:
    assert not anchor_pays(prefix + tail, tail, shares_of(gaps), upgrade_probability=0, times=price_multipliers(price))


@given(prices, tokens, st.integers(0, 5_000), st.integers(0, 9), st.integers(0, 10))
def test_hours_pay_by_the_mean_over_truths_pause_after_pause(
    price: Price, held: int, dearer: int, pauses: int, tenths: int
) -> None:
    times = price_multipliers(price)
    hours, short = dearer * times.write_1h, dearer * times.write_5m
    for upgrades, _ in itertools.product(range(10), range(pauses)):
        # Where lifetimes upgrade an anchor does as much: nothing is counted for either.
        hours += Decimal(0) if upgrades < tenths else held * times.read / 10
        short += Decimal(0) if upgrades < tenths else held * times.write_5m / 10
    assert agrees(
        hour_ttl_pays(held, dearer, pauses, upgrade_probability=Decimal(tenths) / 10, times=times), hours, short
    )


@given(prices, tokens, st.integers(0, 5_000), st.integers(0, 20), st.integers(0, 10), st.integers(0, 20), st.data())
def test_an_upgrade_ping_pays_by_the_mean_over_returns_and_truths(
    price: Price, prefix: int, reply: int, returns: int, tenths: int, closing: int, data: st.DataObject
) -> None:
    times = price_multipliers(price)
    held = data.draw(st.integers(0, prefix))
    pinged = ignored = Decimal(0)
    for back, upgrades in itertools.product(range(20), range(10)):
        pinged += prefix * times.read + reply * times.write_1h + closing
        if back < returns:
            # What another entry holds is read either way.
            lapsing = prefix + reply - held
            pinged += lapsing * (times.read if upgrades < tenths else times.write_5m)
            ignored += lapsing * times.write_5m
    told = upgrade_ping_pays(
        prefix,
        reply,
        Decimal(returns) / 20,
        upgrade_probability=Decimal(tenths) / 10,
        times=times,
        closing_tokens=closing,
        held_tokens=held,
    )
    assert agrees(told, pinged / 200, ignored / 200)


@given(prices, st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_no_other_number_of_pings_is_cheaper_than_the_one_at_which_to_stop(price: Price, weights: list[int]) -> None:
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
def test_what_another_entry_holds_is_not_saved_by_pings(
    price: Price, weights: list[int], prompt: int, data: st.DataObject
) -> None:
    times = price_multipliers(price)
    shares = [weight / Decimal(100) for weight in weights]
    held = data.draw(st.integers(0, prompt))
    whole = best_ping_count(shares, read=times.read, write=times.write_5m, prompt_tokens=prompt)
    partly = best_ping_count(shares, read=times.read, write=times.write_5m, prompt_tokens=prompt, held_tokens=held)
    assert partly.saved_units <= whole.saved_units
    assert best_ping_count(shares, read=times.read, write=times.write_5m, held_tokens=1).pings == 0


@pytest.mark.parametrize("price", MARKED)
def test_a_certain_return_pays_for_so_many_pings_and_not_for_one_more(price: Price) -> None:
    times = price_multipliers(price)
    most = pings_max(read=times.read, write=times.write_5m)
    assert most is not None
    assert most * times.read < times.write_5m - times.read <= (most + 1) * times.read


def test_pings_that_cost_nothing_have_no_limit() -> None:
    assert pings_max(read=Decimal(0), write=Decimal("1.25")) is None


def test_one_more_ping_is_worth_it_only_before_the_session_is_likely_gone() -> None:
    read, write = Decimal("0.1"), Decimal("1.25")
    assert best_ping_count([0.0, 0.0, 0.5], read=read, write=write).pings == 3
    assert best_ping_count([0.0, 0.0, 0.1], read=read, write=write).pings == 0
    assert best_ping_count([0.5, 0.0, 0.01], read=read, write=write).pings == 1


@given(prices, st.integers(1, 6_000), st.integers(0, 3_000), st.integers(1, 4_096), few_calls, st.integers(0, 900))
def test_padding_pays_when_the_padded_session_is_cheaper_call_by_call(
    price: Price, natural: int, added: int, floor: int, calls: int, growth: int
) -> None:
    times = price_multipliers(price)

    def bill(head: int) -> Decimal:
        cost, cached = Decimal(0), 0
        for call in range(calls):
            prompt = head + growth * call
            if prompt < floor:
                cost += prompt
            else:
                cost += cached * times.read + (prompt - cached) * times.write_5m
                cached = prompt
        return cost

    padded = max(natural + added, floor)
    told = padding_pays(
        natural,
        padded,
        floor_tokens=floor,
        ahead=PaddingOutlook(calls, growth),
        read=times.read,
        write=times.write_5m,
    )
    assert agrees(told, bill(padded), bill(natural))


@given(prices, st.integers(1, 4_095), st.integers(0, 2_000), st.integers(1, 500))
def test_without_growth_padding_pays_past_the_number_of_calls_that_the_inequality_names(
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


@given(st.sampled_from(STORED), st.integers(0, 200), st.integers(1, 48), st.booleans())
def test_a_named_cache_pays_when_its_dollars_are_fewer(price: Price, reads: int, half_hours: int, made: bool) -> None:
    named = (0 if made else price.input) + price.storage_per_hour * half_hours / 2 + reads * price.cache_read
    plain = reads * price.input
    told = explicit_cache_pays(price, reads_expected=reads, hours=Decimal(half_hours) / 2, made=made)
    assert agrees(told, named / price.input, plain / price.input)


@given(prices, tokens, st.integers(0, 300_000), st.floats(-100, 4_000))
def test_whoever_waits_comes_back_in_time_or_late_enough_and_knows_the_price_of_both(
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


def test_the_two_times_to_come_back_are_told_in_one_sentence() -> None:
    rates = {"read_usd": Decimal("0.3"), "write_usd": Decimal("3.75")}
    warm = plan_wake(prompt_tokens=100_000, cached_tokens=100_000, warm_seconds=300, **rates)
    assert str(warm) == "come back within 285 s for $0.0300, or after 20 min or more for $0.3750"
    assert warm.warm_wakes_max == 11
    cold = plan_wake(prompt_tokens=100_000, cached_tokens=0, warm_seconds=300, **rates)
    assert str(cold) == "nothing is warm: come back after 20 min or more for $0.3750"


@given(st.floats(0, 1), st.floats(0, 1))
def test_what_a_choice_saves_is_the_difference_of_its_costs(first: float, second: float) -> None:
    assume(first != second)
    told = CostComparison(Decimal(first), Decimal(second))
    assert bool(told) == (told.saved_units > 0)
