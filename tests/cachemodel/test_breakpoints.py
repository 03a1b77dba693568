"""A cache that matches only at breakpoints: where it writes, where it looks, and the pitfalls."""

from collections.abc import Mapping

import pytest
from tests.support.cache_calls import SCOPE, breakpoint_rules

from holdfast.cachemodel.machine import begin_cache_call, run_call
from holdfast.cachemodel.tiers import CacheParameters, ChainBlock, chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheEntries
from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.prompt import Breakpoint, PromptSection, Ttl
from holdfast.types.usage import Usage

RULES = breakpoint_rules()
FREE = breakpoint_rules(floor=0)


def ending_block(name: str, tokens: int = 600, section: PromptSection = "messages") -> ChainBlock:
    """A block that ends an eligible message."""
    return ChainBlock(section, name.encode(), tokens, is_ending=True)


def inner_block(name: str, tokens: int = 600, section: PromptSection = "messages") -> ChainBlock:
    return ChainBlock(section, name.encode(), tokens)


def turns(count: int) -> list[ChainBlock]:
    """A system prompt, then a number of questions, all answered but the last."""
    blocks = [ending_block("system", 1_500, "system")]
    for index in range(count):
        blocks += [ending_block(f"ask {index}", 100), inner_block(f"answer {index}", 100)]
    return blocks[:-1]


def make_call(
    parts: list[ChainBlock],
    breakpoint_ttls: Mapping[int, Ttl] | None = None,
    *,
    at: float = 0.0,
    ttl: str | None = None,
    explicit_only: bool = False,
    key: str | None = None,
) -> CacheCall:
    seeds = chain_seeds(RULES, CacheParameters("model", others={"prompt_cache_key": key}))
    placed = tuple(Breakpoint(block, breakpoint_ttl) for block, breakpoint_ttl in (breakpoint_ttls or {}).items())
    return CacheCall(SCOPE, chain_prefixes(seeds, parts), placed, at, ttl, explicit_only)


def entries_after(*calls: CacheCall, cache_rules: CacheRules = RULES) -> CacheEntries:
    entries = CacheEntries()
    for cache_call in calls:
        _, entries = run_call(cache_rules, entries, cache_call)
    return entries


def usage_of(entries: CacheEntries, cache_call: CacheCall, cache_rules: CacheRules = RULES) -> Usage:
    return begin_cache_call(cache_rules, entries, cache_call)[0].usage


# Writing


def test_the_end_of_the_latest_eligible_message_is_written_and_billed() -> None:
    outcome, _ = begin_cache_call(RULES, CacheEntries(), make_call([*turns(2), inner_block("a beginning", 50)]))
    assert outcome.usage == Usage(cache_write_other=1_800, input=50)
    assert [entry.tokens for entry in outcome.written] == [1_800]


def test_the_next_turn_reads_exactly_what_the_last_one_wrote() -> None:
    assert usage_of(entries_after(make_call(turns(1))), make_call(turns(2))) == Usage(
        cache_read=1_600, cache_write_other=200
    )


def test_an_equal_call_reads_everything_and_writes_nothing() -> None:
    assert usage_of(entries_after(make_call(turns(3))), make_call(turns(3))) == Usage(cache_read=2_000)


def test_nothing_is_written_below_the_minimum() -> None:
    outcome, _ = begin_cache_call(RULES, CacheEntries(), make_call([ending_block("short", 1_023)]))
    assert (outcome.usage, outcome.written) == (Usage(input=1_023), ())
    assert begin_cache_call(RULES, CacheEntries(), make_call([ending_block("enough", 1_024)]))[0].usage == Usage(
        cache_write_other=1_024
    )


def test_an_explicit_breakpoint_is_written_beside_the_implicit_one() -> None:
    outcome, _ = begin_cache_call(RULES, CacheEntries(), make_call(turns(2), {0: "12h"}))
    assert [(entry.tokens, entry.ttl) for entry in outcome.written] == [(1_500, "12h"), (1_800, "30m")]
    assert outcome.usage == Usage(cache_write_other=1_800)


def test_of_too_many_breakpoints_only_the_latest_are_written_without_an_error() -> None:
    breakpoint_ttls: dict[int, Ttl] = dict.fromkeys(range(6), "30m")
    parts = [inner_block(f"block {index}", 2_000) for index in range(8)]
    implicit = begin_cache_call(
        RULES, CacheEntries(), make_call([*parts, ending_block("last", 2_000)], breakpoint_ttls)
    )[0]
    assert [entry.tokens for entry in implicit.written] == [8_000, 10_000, 12_000, 18_000]
    explicit = begin_cache_call(
        RULES, CacheEntries(), make_call([*parts, ending_block("last", 2_000)], breakpoint_ttls, explicit_only=True)
    )[0]
    assert [entry.tokens for entry in explicit.written] == [6_000, 8_000, 10_000, 12_000]


def test_an_explicit_breakpoint_at_the_implicit_one_sets_its_ttl() -> None:
    outcome, _ = begin_cache_call(RULES, CacheEntries(), make_call(turns(1), {1: "12h"}))
    assert [(entry.tokens, entry.ttl, entry.expires_at) for entry in outcome.written] == [(1_600, "12h", 43_200.0)]


def test_the_implicit_breakpoint_has_the_ttl_of_the_call() -> None:
    assert begin_cache_call(RULES, CacheEntries(), make_call(turns(1), ttl="12h"))[0].written[0].expires_at == 43_200


def test_without_implicit_and_explicit_breakpoints_nothing_is_cached() -> None:
    entries = entries_after(make_call(turns(1)))
    outcome, _ = begin_cache_call(RULES, entries, make_call(turns(1), explicit_only=True))
    assert (outcome.usage, outcome.written, outcome.read) == (Usage(input=1_600), (), None)


def test_a_breakpoint_inside_the_read_prefix_is_written_for_free() -> None:
    entries = entries_after(make_call(turns(2)))
    outcome, _ = begin_cache_call(RULES, entries, make_call(turns(2), {0: "30m"}))
    assert outcome.usage == Usage(cache_read=1_800)
    assert [entry.tokens for entry in outcome.written] == [1_500]


@pytest.mark.parametrize(
    ("breakpoint_ttls", "message"),
    [
        ((Breakpoint(9, "30m"),), "breakpoint on block 9 of 2"),
        ((Breakpoint(0, "30m"), Breakpoint(0, "30m")), "two breakpoints on block 0"),
        ((Breakpoint(0, "5m"),), "ttl '5m'; known: 12h, 30m"),
    ],
)
def test_invalid_breakpoints_are_refused(breakpoint_ttls: tuple[Breakpoint, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        begin_cache_call(RULES, CacheEntries(), CacheCall(SCOPE, make_call(turns(1)).prefixes, breakpoint_ttls, 0))


# TTLs


def test_an_entry_expires_half_an_hour_after_its_last_use() -> None:
    entries = entries_after(make_call(turns(1)), make_call(turns(1), at=1_000))
    assert usage_of(entries, make_call(turns(1), at=2_799)).cache_read == 1_600
    assert usage_of(entries, make_call(turns(1), at=2_800)).cache_read == 0


def test_reading_a_longer_prefix_refreshes_the_initial_one() -> None:
    entries = entries_after(make_call(turns(1)[:1]), make_call(turns(1), at=1_000))
    other = [turns(1)[0], ending_block("something else")]
    assert usage_of(entries, make_call(other, at=2_799)).cache_read == 1_500


# Lookup


def test_the_end_of_the_initial_developer_block_is_looked_up_at_any_distance() -> None:
    entries = entries_after(make_call(turns(1)[:1]))
    assert usage_of(entries, make_call(turns(40))).cache_read == 1_500


def test_twenty_earlier_message_ends_are_looked_up() -> None:
    entries = entries_after(make_call(turns(3)))
    assert usage_of(entries, make_call(turns(23))).cache_read == 2_000
    assert usage_of(entries, make_call(turns(24))).cache_read == 0


def test_the_first_and_the_latest_breakpoints_are_looked_up_and_none_between() -> None:
    cache_rules = breakpoint_rules(floor=0, first=1, latest=2, lookback=0)
    parts = [inner_block(f"block {index}", 100) for index in range(9)]
    breakpoint_ttls: dict[int, Ttl] = dict.fromkeys(range(6), "30m")
    reads = [
        usage_of(
            entries_after(make_call(parts, {index: "30m"}), cache_rules=cache_rules),
            make_call(parts, breakpoint_ttls),
            cache_rules,
        ).cache_read
        for index in range(6)
    ]
    assert reads == [100, 0, 0, 0, 500, 600]


def test_without_latest_breakpoints_only_the_first_are_looked_up() -> None:
    cache_rules = breakpoint_rules(floor=0, first=1, latest=0)
    parts = [inner_block(f"block {index}", 100) for index in range(3)]
    entries = entries_after(make_call(parts, {2: "30m"}), cache_rules=cache_rules)
    assert usage_of(entries, make_call(parts, {0: "30m", 2: "30m"}), cache_rules).cache_read == 0


# Pitfalls


def test_a_shared_prefix_without_its_own_breakpoint_is_not_read() -> None:
    system = turns(1)[0]
    one, other = [system, ending_block("one task")], [system, ending_block("another task")]
    assert usage_of(entries_after(make_call(one)), make_call(other)).cache_read == 0
    assert usage_of(entries_after(make_call(one, {0: "30m"})), make_call(other)).cache_read == 1_500


def test_switching_to_explicit_breakpoints_misses_unless_one_is_at_the_same_boundary() -> None:
    entries = entries_after(make_call(turns(1)))
    assert usage_of(entries, make_call(turns(2), {0: "30m"}, explicit_only=True)).cache_read == 0
    assert usage_of(entries, make_call(turns(2), {1: "30m"}, explicit_only=True)).cache_read == 1_600


def test_extending_the_same_message_misses() -> None:
    system = turns(1)[0]
    entries = entries_after(make_call([system, ending_block("question")]))
    assert usage_of(entries, make_call([system, inner_block("question"), ending_block("more of it")])).cache_read == 0


def test_a_later_developer_message_is_not_looked_up() -> None:
    system = turns(1)[0]
    entries = entries_after(make_call([system, inner_block("later instructions")], {1: "30m"}, explicit_only=True))
    grown = [system, inner_block("later instructions"), ending_block("question")]
    assert usage_of(entries, make_call(grown)).cache_read == 0


def test_another_cache_key_reads_nothing() -> None:
    entries = entries_after(make_call(turns(1), key="one"))
    assert usage_of(entries, make_call(turns(1), key="one")).cache_read == 1_600
    assert usage_of(entries, make_call(turns(1), key="two")).cache_read == 0
