"""The cache at its edges: lookback, minimum, TTLs, concurrency, limits and refusals."""

import pytest
from tests.support.cache_calls import SCOPE, call, chain_block, rules

from holdfast.cachemodel.anthropic import check_breakpoints, lookup_positions
from holdfast.cachemodel.machine import begin_cache_call, publish_entries, run_call
from holdfast.cachemodel.tiers import CacheParameters, ChainBlock, chain_prefixes, chain_seeds
from holdfast.cachemodel.values import BlockKind, CacheCall, CacheEntries, CacheEntry, CacheScope
from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.prompt import Breakpoint, PromptSection, Ttl
from holdfast.types.usage import Usage

FREE = rules(floor=0)
NO_UPGRADE = rules(floor=0, upgrade=False)


def blocks(count: int, tokens: int = 100) -> list[ChainBlock]:
    return [chain_block(f"block {index}", tokens) for index in range(count)]


def entries_after(*calls: CacheCall, cache_rules: CacheRules = FREE) -> CacheEntries:
    entries = CacheEntries()
    for cache_call in calls:
        _, entries = run_call(cache_rules, entries, cache_call)
    return entries


def usage_of(entries: CacheEntries, cache_call: CacheCall, cache_rules: CacheRules = FREE) -> Usage:
    return begin_cache_call(cache_rules, entries, cache_call)[0].usage


# Lookback


def test_a_breakpoint_finds_an_entry_before_it() -> None:
    entries = entries_after(call(blocks(11), {10: "5m"}))
    assert usage_of(entries, call(blocks(16), {15: "5m"})) == Usage(cache_read=1_100, cache_write_5m=500)


def test_a_breakpoint_does_not_find_an_entry_twenty_blocks_before_it() -> None:
    entries = entries_after(call(blocks(16), {15: "5m"}))
    assert usage_of(entries, call(blocks(36), {35: "5m"})) == Usage(cache_write_5m=3_600)


def test_a_breakpoint_finds_an_entry_nineteen_blocks_before_it() -> None:
    entries = entries_after(call(blocks(17), {16: "5m"}))
    assert usage_of(entries, call(blocks(36), {35: "5m"})).cache_read == 1_700


def test_the_lookup_continues_from_the_next_earlier_breakpoint() -> None:
    entries = entries_after(call(blocks(16), {15: "5m"}))
    usage = usage_of(entries, call(blocks(36), {34: "5m", 35: "5m"}))
    assert usage.cache_read == 1_600


@pytest.mark.parametrize(("counting", "reads"), [("blocks", 0), ("positions", 200)])
def test_a_run_of_tool_calls_and_one_of_results_count_once_if_runs_collapse(counting: str, reads: int) -> None:
    cache_rules = rules(floor=0, counting="positions" if counting == "positions" else "blocks")
    question = [chain_block("system", 100, "system"), chain_block("ask", 100)]
    uses = [chain_block(f"use {n}", 10, kind="tool_use") for n in range(25)]
    results = [chain_block(f"result {n}", 10, kind="tool_result") for n in range(25)]
    entries = entries_after(call(question, {1: "5m"}), cache_rules=cache_rules)
    assert usage_of(entries, call([*question, *uses, *results], {51: "5m"}), cache_rules).cache_read == reads


def test_runs_collapse_only_among_neighbours_of_the_same_kind() -> None:
    kinds: tuple[BlockKind, ...] = (
        "plain",
        "tool_use",
        "tool_use",
        "tool_result",
        "tool_use",
        "plain",
        "plain",
    )
    prefixes = call([chain_block(str(n), 1, kind=kind) for n, kind in enumerate(kinds)], {}).prefixes
    cache_rules = rules(counting="positions", lookback=4)
    assert list(lookup_positions(cache_rules, prefixes, 6)) == [6, 5, 4, 3]
    assert list(lookup_positions(cache_rules, prefixes, 3)) == [3, 2, 1, 0]
    assert list(lookup_positions(rules(lookback=2), prefixes, 3)) == [3, 2]


def test_an_entry_inside_a_collapsed_run_is_found() -> None:
    cache_rules = rules(floor=0, counting="positions")
    uses = [chain_block(f"use {n}", 10, kind="tool_use") for n in range(40)]
    entries = entries_after(call(uses[:3], {2: "5m"}), cache_rules=cache_rules)
    assert usage_of(entries, call(uses, {39: "5m"}), cache_rules).cache_read == 30


def test_nothing_is_written_between_breakpoints() -> None:
    entries = entries_after(call(blocks(10), {9: "5m"}))
    assert [entry.tokens for entry in entries.live_entries(at=0)] == [1_000]
    assert usage_of(entries, call(blocks(9), {8: "5m"})).cache_read == 0


# Minimum


@pytest.mark.parametrize(("tokens", "written"), [(1_023, 0), (1_024, 1_024)])
def test_a_prefix_below_the_minimum_is_silently_not_cached(tokens: int, written: int) -> None:
    outcome, entries = run_call(rules(), CacheEntries(), call([chain_block("a", tokens)], {0: "5m"}))
    assert outcome.usage == Usage(input=tokens - written, cache_write_5m=written)
    assert len(entries.by_key) == (1 if written else 0)


def test_a_breakpoint_below_the_minimum_is_free_beside_a_longer_one() -> None:
    parts = [chain_block("a", 1_000), chain_block("b", 1_000), chain_block("c", 7)]
    outcome, _ = run_call(rules(), CacheEntries(), call(parts, {0: "1h", 1: "5m"}))
    assert outcome.usage == Usage(input=7, cache_write_5m=2_000)
    assert [entry.tokens for entry in outcome.written] == [2_000]


def test_a_raised_minimum_hides_entries_below_it() -> None:
    entries = entries_after(call(blocks(10), {9: "5m"}))
    again = call(blocks(11), {10: "5m"})
    assert usage_of(entries, again, rules(floor=1_000)).cache_read == 1_000
    assert usage_of(entries, again, rules(floor=1_001)).cache_read == 0


# TTLs


@pytest.mark.parametrize(("ttl", "last"), [("5m", 300.0), ("1h", 3_600.0)])
def test_an_entry_lives_for_its_ttl_from_the_start_of_the_request(ttl: Ttl, last: float) -> None:
    entries = entries_after(call(blocks(3), {2: ttl}, at=1_000))
    assert usage_of(entries, call(blocks(3), {2: ttl}, at=1_000 + last - 0.001)).cache_read == 300
    assert usage_of(entries, call(blocks(3), {2: ttl}, at=1_000 + last)).cache_read == 0


def test_a_read_restarts_the_ttl() -> None:
    again = [call(blocks(3), {2: "5m"}, at=at) for at in (0, 299, 598)]
    assert usage_of(entries_after(*again[:2]), again[2]).cache_read == 300


def test_a_prefix_with_a_breakpoint_inside_the_read_one_is_refreshed_too() -> None:
    first = call(blocks(5), {1: "5m", 4: "5m"}, at=0)
    second = call(blocks(5), {1: "5m", 4: "5m"}, at=200)
    other = call([*blocks(2), chain_block("other", 50)], {1: "5m", 2: "5m"}, at=400)
    assert usage_of(entries_after(first, second), other).cache_read == 200


def test_a_prefix_without_a_breakpoint_inside_the_read_one_is_not_refreshed() -> None:
    first = call(blocks(5), {1: "5m", 4: "5m"}, at=0)
    second = call(blocks(5), {4: "5m"}, at=200)
    other = call([*blocks(2), chain_block("other", 50)], {1: "5m"}, at=400)
    assert usage_of(entries_after(first, second), other).cache_read == 0


def test_a_late_call_with_an_earlier_time_shortens_nothing() -> None:
    entries = entries_after(call(blocks(3), {2: "5m"}, at=100), call(blocks(3), {2: "5m"}, at=50))
    assert [entry.expires_at for entry in entries.by_key.values()] == [400]


def test_reading_a_short_entry_with_a_one_hour_breakpoint_does_not_extend_it() -> None:
    entries = entries_after(call(blocks(3), {2: "5m"}, at=0), call(blocks(3), {2: "1h"}, at=10))
    assert [(entry.ttl, entry.expires_at) for entry in entries.by_key.values()] == [("5m", 310)]


def test_a_breakpoint_inside_the_read_prefix_writes_its_entry_for_free() -> None:
    entries = entries_after(call(blocks(6), {5: "5m"}, at=0))
    outcome, entries = run_call(FREE, entries, call(blocks(6), {2: "5m", 5: "5m"}, at=10))
    assert outcome.usage == Usage(cache_read=600)
    assert usage_of(entries, call(blocks(3), {2: "5m"}, at=20)).cache_read == 300


def anchored(*, at: float, cache_rules: CacheRules) -> CacheEntries:
    """A five-minute prefix of three blocks, and at `at` a one-hour breakpoint two blocks further."""
    return entries_after(call(blocks(3), {2: "5m"}, at=0), call(blocks(5), {4: "1h"}, at=at), cache_rules=cache_rules)


@pytest.mark.parametrize(("at", "reads"), [(309.0, 500), (310.0, 0)])
def test_a_one_hour_entry_expires_with_the_five_minute_entry_it_depends_on(at: float, reads: int) -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    assert usage_of(entries, call(blocks(5), {4: "1h"}, at=at), NO_UPGRADE).cache_read == reads


def test_a_one_hour_entry_whose_dependency_was_read_meanwhile_is_still_live() -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    _, entries = run_call(NO_UPGRADE, entries, call(blocks(3), {2: "5m"}, at=300))
    assert usage_of(entries, call(blocks(5), {4: "1h"}, at=599), NO_UPGRADE).cache_read == 500


def test_reading_a_one_hour_entry_refreshes_the_five_minute_entry_it_depends_on() -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    _, entries = run_call(NO_UPGRADE, entries, call(blocks(5), {4: "1h"}, at=300))
    assert usage_of(entries, call(blocks(5), {4: "1h"}, at=599), NO_UPGRADE).cache_read == 500
    assert usage_of(entries, call(blocks(5), {4: "1h"}, at=600), NO_UPGRADE).cache_read == 0


@pytest.mark.parametrize("cache_rules", [FREE, NO_UPGRADE])
def test_a_five_minute_entry_is_refreshed_with_the_one_hour_entry_that_contains_it(cache_rules: CacheRules) -> None:
    entries = anchored(at=10, cache_rules=cache_rules)
    _, entries = run_call(cache_rules, entries, call(blocks(5), {4: "1h"}, at=200))
    assert usage_of(entries, call(blocks(3), {2: "5m"}, at=499), cache_rules).cache_read == 300
    assert usage_of(entries, call(blocks(3), {2: "5m"}, at=500), cache_rules).cache_read == 0


def test_an_expired_five_minute_entry_does_not_come_back_with_the_one_hour_entry_that_outlives_it() -> None:
    entries = anchored(at=10, cache_rules=FREE)
    _, entries = run_call(FREE, entries, call(blocks(5), {4: "1h"}, at=1_000))
    assert usage_of(entries, call(blocks(3), {2: "5m"}, at=1_001)).cache_read == 0


def test_a_one_hour_entry_on_one_that_outlived_its_dependency_depends_on_nothing() -> None:
    entries = anchored(at=10, cache_rules=FREE)
    outcome, _ = run_call(FREE, entries, call(blocks(7), {6: "1h"}, at=1_000))
    assert [(entry.depends_on, entry.outlives_dependency) for entry in outcome.written] == [(None, False)]


def test_a_second_one_hour_entry_depends_on_the_same_five_minute_entry() -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    outcome, _ = run_call(NO_UPGRADE, entries, call(blocks(7), {6: "1h"}, at=20))
    weak = call(blocks(3), {}).prefixes[2].digest
    assert [entry.depends_on for entry in outcome.written] == [weak]


def test_a_one_hour_entry_on_a_one_hour_entry_depends_on_nothing() -> None:
    entries = entries_after(call(blocks(3), {2: "1h"}, at=0), cache_rules=NO_UPGRADE)
    outcome, _ = run_call(NO_UPGRADE, entries, call(blocks(5), {4: "1h"}, at=10))
    assert [(entry.ttl, entry.depends_on, entry.expires_at) for entry in outcome.written] == [("1h", None, 3_610)]


def test_a_five_minute_entry_on_a_one_hour_entry_depends_on_nothing() -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    outcome, _ = run_call(NO_UPGRADE, entries, call(blocks(7), {6: "5m"}, at=20))
    assert [(entry.ttl, entry.depends_on) for entry in outcome.written] == [("5m", None)]


@pytest.mark.parametrize(("cache_rules", "ttl"), [(NO_UPGRADE, "5m"), (FREE, "1h")])
def test_a_one_hour_breakpoint_inside_a_five_minute_entry_lives_one_hour_only_with_ttl_upgrades(
    cache_rules: CacheRules, ttl: str
) -> None:
    entries = entries_after(call(blocks(5), {4: "5m"}, at=0), cache_rules=cache_rules)
    outcome, _ = run_call(cache_rules, entries, call(blocks(5), {2: "1h"}, at=10))
    # The breakpoint does not look ahead, so nothing is read and everything is written again.
    assert outcome.usage == Usage(input=200, cache_write_1h=300)
    outcome, _ = run_call(cache_rules, entries, call(blocks(5), {2: "1h", 4: "5m"}, at=10))
    assert outcome.usage == Usage(cache_read=500)
    assert [(entry.tokens, entry.ttl) for entry in outcome.written] == [(300, ttl)]


def test_an_expired_one_hour_entry_is_written_again() -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    outcome, entries = run_call(NO_UPGRADE, entries, call(blocks(5), {4: "1h"}, at=1_000))
    assert outcome.usage == Usage(cache_write_1h=500)
    assert usage_of(entries, call(blocks(5), {4: "1h"}, at=4_599), NO_UPGRADE).cache_read == 500


# Billing


def test_mixed_ttls_are_billed_each_for_their_part() -> None:
    entries = entries_after(call(blocks(2), {1: "1h"}))
    cache_call = call(blocks(9), {1: "1h", 3: "1h", 5: "5m", 7: "5m"}, at=1)
    expected = Usage(cache_read=200, cache_write_1h=200, cache_write_5m=400, input=100)
    assert usage_of(entries, cache_call) == expected


def test_a_one_hour_breakpoint_before_the_hit_costs_nothing() -> None:
    entries = entries_after(call(blocks(4), {1: "1h", 3: "5m"}))
    cache_call = call(blocks(6), {1: "1h", 5: "5m"}, at=1)
    assert usage_of(entries, cache_call) == Usage(cache_read=400, cache_write_5m=200)


def test_without_breakpoints_everything_is_plain_input() -> None:
    entries = entries_after(call(blocks(4), {3: "5m"}))
    assert usage_of(entries, call(blocks(4), {})) == Usage(input=400)


def test_an_empty_call_has_no_usage() -> None:
    assert usage_of(CacheEntries(), call([], {})) == Usage()


# Concurrency


def test_the_writes_of_a_call_are_hidden_until_its_response_starts() -> None:
    cache_call = call(blocks(3), {2: "5m"})
    first, entries = begin_cache_call(FREE, CacheEntries(), cache_call)
    second, entries = begin_cache_call(FREE, entries, cache_call)
    assert first.usage == second.usage == Usage(cache_write_5m=300)
    assert usage_of(publish_entries(entries, first), cache_call) == Usage(cache_read=300)


def test_a_read_refreshes_when_it_starts_and_not_when_it_is_answered() -> None:
    entries = entries_after(call(blocks(3), {2: "5m"}, at=0))
    _, entries = begin_cache_call(FREE, entries, call(blocks(3), {2: "5m"}, at=299))
    assert usage_of(entries, call(blocks(3), {2: "5m"}, at=301)).cache_read == 300


def test_of_two_calls_that_wrote_the_same_prefix_the_longer_ttl_stays() -> None:
    long, _ = begin_cache_call(FREE, CacheEntries(), call(blocks(3), {2: "1h"}))
    short, _ = begin_cache_call(FREE, CacheEntries(), call(blocks(3), {2: "5m"}))
    for order in ((long, short), (short, long)):
        entries = publish_entries(publish_entries(CacheEntries(), order[0]), order[1])
        assert [entry.ttl for entry in entries.by_key.values()] == ["1h"]


def test_an_older_write_is_replaced_by_a_newer_one_of_the_same_ttl() -> None:
    old, _ = begin_cache_call(FREE, CacheEntries(), call(blocks(3), {2: "5m"}, at=0))
    new, _ = begin_cache_call(FREE, CacheEntries(), call(blocks(3), {2: "5m"}, at=7))
    entries = publish_entries(publish_entries(CacheEntries(), old), new)
    assert [entry.expires_at for entry in entries.by_key.values()] == [307]


# Isolation


@pytest.mark.parametrize("other", [CacheScope("workspace", "other"), CacheScope("other", "model")])
def test_scopes_share_nothing(other: CacheScope) -> None:
    entries = entries_after(call(blocks(3), {2: "5m"}))
    same_blocks = call(blocks(3), {2: "5m"}, scope=other, parameters=CacheParameters(SCOPE.model))
    assert usage_of(entries, same_blocks).cache_read == 0


# Sections

ALL_SECTIONS = [chain_block("tool", 100, "tools"), chain_block("system", 100, "system"), chain_block("ask", 100)]


@pytest.mark.parametrize(
    ("changed", "reads"),
    [
        (CacheParameters("m"), 300),
        (CacheParameters("other"), 0),
        (CacheParameters("m", speed="fast"), 100),
        (CacheParameters("m", web_search=True), 100),
        (CacheParameters("m", citations=True), 100),
        (CacheParameters("m", tool_choice='{"type":"any"}'), 200),
        (CacheParameters("m", thinking='{"type":"adaptive"}'), 200),
        (CacheParameters("m", images=True), 200),
        (CacheParameters("m", effort="high"), 300),
    ],
)
def test_a_parameter_invalidates_the_cache_from_its_section_on(changed: CacheParameters, reads: int) -> None:
    breakpoint_ttls: dict[int, Ttl] = {0: "5m", 1: "5m", 2: "5m"}
    entries = entries_after(call(ALL_SECTIONS, breakpoint_ttls, parameters=CacheParameters("m")))
    assert usage_of(entries, call(ALL_SECTIONS, breakpoint_ttls, parameters=changed)).cache_read == reads


def test_effort_counts_only_if_the_rules_say_so() -> None:
    high = CacheParameters("m", effort="high")
    plain = CacheParameters("m")
    strict = rules(effort_breaks_messages=True)
    assert chain_seeds(rules(), high) == chain_seeds(rules(), plain)
    assert chain_seeds(strict, high)["messages"] != chain_seeds(strict, plain)["messages"]
    assert chain_seeds(strict, high)["system"] == chain_seeds(strict, plain)["system"]


def test_a_parameter_that_the_rules_do_not_name_changes_nothing() -> None:
    lenient = CacheRules(kind="explicit", tokens_min=0)
    changed = CacheParameters("other", speed="fast", thinking="{}", effort="high")
    assert chain_seeds(lenient, changed) == chain_seeds(lenient, CacheParameters("m"))


def test_a_section_without_blocks_still_counts_for_later_ones() -> None:
    question = [chain_block("ask", 100)]
    fast = call(question, {}, parameters=CacheParameters("m", speed="fast"))
    assert fast.prefixes[0].digest != call(question, {}, parameters=CacheParameters("m")).prefixes[0].digest


@pytest.mark.parametrize(("first", "then"), [("messages", "system"), ("system", "tools"), ("messages", "tools")])
def test_blocks_out_of_wire_order_are_refused(first: PromptSection, then: PromptSection) -> None:
    with pytest.raises(UserError, match=f"'{then}' after one of '{first}'"):
        chain_prefixes(chain_seeds(FREE, CacheParameters("m")), [chain_block("a", 1, first), chain_block("b", 1, then)])


# Limits


def test_expired_entries_are_dropped_when_the_limit_is_exceeded() -> None:
    entries = entries_after(*(call([chain_block(str(n), 10)], {0: "5m"}, at=n) for n in range(3)))
    late, _ = begin_cache_call(FREE, entries, call([chain_block("late", 10)], {0: "1h"}, at=301))
    remaining = publish_entries(entries, late, entries_max=3).by_key.values()
    assert [entry.expires_at for entry in remaining] == [302, 3_901]


def test_a_full_cache_drops_what_expires_first() -> None:
    entries = entries_after(*(call([chain_block(str(n), 10)], {0: "5m"}, at=100 - n) for n in range(4)))
    late, _ = begin_cache_call(FREE, entries, call([chain_block("late", 10)], {0: "1h"}, at=100))
    assert len(publish_entries(entries, late, entries_max=5).by_key) == 5
    remaining = publish_entries(entries, late, entries_max=4).by_key.values()
    assert [entry.expires_at for entry in remaining] == [400, 3_700]


def test_a_cache_of_one_entry_keeps_the_one_that_lives_longest() -> None:
    entries = entries_after(call([chain_block("a", 10)], {0: "1h"}))
    late, _ = begin_cache_call(FREE, entries, call([chain_block("b", 10)], {0: "5m"}))
    assert [entry.ttl for entry in publish_entries(entries, late, entries_max=1).by_key.values()] == ["1h"]


def test_an_entry_whose_dependency_was_dropped_is_not_read() -> None:
    entries = anchored(at=10, cache_rules=NO_UPGRADE)
    alone = CacheEntries({key: entry for key, entry in entries.by_key.items() if entry.ttl == "1h"})
    assert usage_of(alone, call(blocks(5), {4: "1h"}, at=20), NO_UPGRADE).cache_read == 0
    assert alone.live_entries(at=20) == ()


def test_the_live_entries_are_those_that_can_be_read() -> None:
    entries = entries_after(call(blocks(2), {0: "1h", 1: "5m"}, at=0))
    assert [entry.ttl for entry in entries.live_entries(at=299)] == ["1h", "5m"]
    assert [entry.ttl for entry in entries.live_entries(at=300)] == ["1h"]


def test_publishing_nothing_changes_nothing() -> None:
    entries = entries_after(call(blocks(2), {1: "5m"}))
    outcome, entries = begin_cache_call(FREE, entries, call(blocks(2), {1: "5m"}))
    assert publish_entries(entries, outcome) is entries


# Refusals


@pytest.mark.parametrize(
    ("breakpoints", "message"),
    [
        ([Breakpoint(n) for n in range(5)], "A maximum of 4 blocks with cache_control may be provided. Found 5."),
        ([Breakpoint(0, "5m"), Breakpoint(1, "1h")], "ttl='1h' cache_control block must not come after"),
        ([Breakpoint(1, "1h"), Breakpoint(0, "5m")], "ttl='1h' cache_control block must not come after"),
        ([Breakpoint(3), Breakpoint(3)], "two breakpoints on block 3"),
        ([Breakpoint(9)], "block 9 of 9"),
        ([Breakpoint(-1)], "block -1 of 9"),
        ([Breakpoint(0, "2h")], "unknown cache_control ttl '2h'; known: 1h, 5m"),  # type: ignore[arg-type]  # the wire may say anything
    ],
)
def test_breakpoints_that_the_provider_refuses_are_refused(breakpoints: list[Breakpoint], message: str) -> None:
    with pytest.raises(UserError, match=message):
        begin_cache_call(FREE, CacheEntries(), CacheCall(SCOPE, call(blocks(9), {}).prefixes, tuple(breakpoints), 0))


def test_four_breakpoints_with_the_longest_ttl_first_are_accepted() -> None:
    breakpoints = [Breakpoint(0, "1h"), Breakpoint(1, "1h"), Breakpoint(2, "5m"), Breakpoint(8, "5m")]
    check_breakpoints(FREE, breakpoints, blocks=9)


def test_a_model_without_a_cache_bills_everything_as_plain_input() -> None:
    none = CacheRules(kind="none", tokens_min=0)
    assert begin_cache_call(none, CacheEntries(), call(blocks(2), {})) == (
        begin_cache_call(FREE, CacheEntries(), call(blocks(2), {}))[0],
        CacheEntries(),
    )


def test_an_entry_has_its_scope_and_its_expiry() -> None:
    outcome, _ = run_call(FREE, CacheEntries(), call(blocks(2), {1: "1h"}, at=5))
    digest = call(blocks(2), {}).prefixes[1].digest
    assert outcome.written == (CacheEntry(SCOPE, digest, 200, "1h", 3_605.0),)
