"""One session, call by call: the exact reads, writes and cost."""

import pytest
from tests.support.cache_calls import call, chain_block, cost_units, rules

from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import CacheEntries, CacheOutcome
from holdfast.types.prompt import Ttl
from holdfast.types.usage import Usage

PREFIX = [chain_block("T1", 600, "tools"), chain_block("T2", 600, "tools"), chain_block("S", 1_500, "system")]
CALL_1 = [*PREFIX, chain_block("environment", 40), chain_block("ask 1", 60)]
CALL_2 = [
    *CALL_1,
    chain_block("text", 30),
    chain_block("use", 50, kind="tool_use"),
    chain_block("result", 900, kind="tool_result"),
]
CALL_3 = [*CALL_2, chain_block("text", 120), chain_block("memory", 35), chain_block("ask 2", 45)]
CALL_4 = [*CALL_3, chain_block("text", 80), chain_block("ask 3", 30)]
PREFIX_BREAKPOINTS: dict[int, Ttl] = {1: "5m", 2: "5m"}
ROLLING_BREAKPOINTS: dict[int, Ttl] = {**PREFIX_BREAKPOINTS, 10: "5m"}
ANCHOR_BREAKPOINT: dict[int, Ttl] = {10: "1h"}
MINUTES_21 = 21 * 60.0


def play(*, breakpoints_of_third_call: dict[int, Ttl], upgrade: bool = True) -> list[CacheOutcome]:
    calls = [
        call(CALL_1, {**PREFIX_BREAKPOINTS, 4: "5m"}, at=0),
        call(CALL_2, {**PREFIX_BREAKPOINTS, 7: "5m"}, at=12),
        call(CALL_3, breakpoints_of_third_call, at=60),
        call(CALL_4, {**PREFIX_BREAKPOINTS, 12: "5m"}, at=MINUTES_21),
    ]
    entries, outcomes = CacheEntries(), []
    for cache_call in calls:
        outcome, entries = run_call(rules(upgrade=upgrade), entries, cache_call)
        outcomes.append(outcome)
    return outcomes


@pytest.mark.parametrize(
    ("number", "usage", "cost"),
    [
        (1, Usage(cache_write_5m=2_800), 3_500),
        (2, Usage(cache_read=2_800, cache_write_5m=980), 1_505),
        (3, Usage(cache_read=3_780, cache_write_5m=200), 628),
        (4, Usage(cache_write_5m=4_090), 5_112.5),
    ],
)
def test_each_call_of_the_session_costs_what_the_table_says(number: int, usage: Usage, cost: float) -> None:
    outcome = play(breakpoints_of_third_call=ROLLING_BREAKPOINTS)[number - 1]
    assert outcome.usage == usage
    assert cost_units(outcome.usage) == cost


def test_an_anchor_is_written_at_the_one_hour_price() -> None:
    usage = play(breakpoints_of_third_call=ANCHOR_BREAKPOINT)[2].usage
    assert usage == Usage(cache_read=3_780, cache_write_1h=200)
    assert cost_units(usage) == 778


def test_with_ttl_upgrades_an_anchor_is_read_after_the_pause() -> None:
    usage = play(breakpoints_of_third_call=ANCHOR_BREAKPOINT)[3].usage
    assert usage == Usage(cache_read=3_980, cache_write_5m=110)
    assert cost_units(usage) == 535.5


def test_without_ttl_upgrades_an_anchor_is_useless_after_the_pause() -> None:
    usage = play(breakpoints_of_third_call=ANCHOR_BREAKPOINT, upgrade=False)[3].usage
    assert usage == Usage(cache_write_5m=4_090)
    assert cost_units(usage) == 5_112.5


def test_the_seed_layout_rewrites_the_history_when_its_volatile_block_changes() -> None:
    history = [chain_block("ask 1", 60), *CALL_2[5:8], chain_block("text", 120), chain_block("ask 2", 45)]
    before = [*PREFIX, chain_block("environment", 40, "system"), *history[:4]]
    after = [*PREFIX, chain_block("environment and memory", 75, "system"), *history]
    _, entries = run_call(rules(), CacheEntries(), call(before, {**PREFIX_BREAKPOINTS, 7: "5m"}, at=12))
    outcome, _ = run_call(rules(), entries, call(after, {**PREFIX_BREAKPOINTS, 9: "5m"}, at=60))
    assert outcome.usage == Usage(cache_read=2_700, cache_write_5m=1_280)
    assert cost_units(outcome.usage) == 1_870


def test_the_entry_of_the_first_call_is_found_three_positions_back_without_its_breakpoint() -> None:
    outcomes = play(breakpoints_of_third_call=ROLLING_BREAKPOINTS)
    assert outcomes[1].read is not None
    assert outcomes[1].read == outcomes[0].written[-1]
