"""A cache that matches only at breakpoints: where it writes, where it looks, and the traps in between."""

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

BY = breakpoint_rules()
FREE = breakpoint_rules(floor=0)


def end(name: str, tokens: int = 600, place: PromptSection = "messages") -> ChainBlock:
    """A block that ends an eligible message."""
    return ChainBlock(place, name.encode(), tokens, is_ending=True)


def inside(name: str, tokens: int = 600, place: PromptSection = "messages") -> ChainBlock:
    return ChainBlock(place, name.encode(), tokens)


def turns(count: int) -> list[ChainBlock]:
    """A system prompt, then so many questions, answered but for the last."""
    found = [end("system", 1_500, "system")]
    for index in range(count):
        found += [end(f"ask {index}", 100), inside(f"answer {index}", 100)]
    return found[:-1]


def ask(
    parts: list[ChainBlock],
    marks: Mapping[int, Ttl] | None = None,
    *,
    at: float = 0.0,
    ttl: str | None = None,
    only_marks: bool = False,
    key: str | None = None,
) -> CacheCall:
    seeds = chain_seeds(BY, CacheParameters("model", others={"prompt_cache_key": key}))
    placed = tuple(Breakpoint(piece, lifetime) for piece, lifetime in (marks or {}).items())
    return CacheCall(SCOPE, chain_prefixes(seeds, parts), placed, at, ttl, only_marks)


def after(*calls: CacheCall, by: CacheRules = BY) -> CacheEntries:
    entries = CacheEntries()
    for each in calls:
        _, entries = run_call(by, entries, each)
    return entries


def usage_of(entries: CacheEntries, each: CacheCall, by: CacheRules = BY) -> Usage:
    return begin_cache_call(by, entries, each)[0].usage


# Writing


def test_the_end_of_the_latest_eligible_message_is_written_and_billed() -> None:
    outcome, _ = begin_cache_call(BY, CacheEntries(), ask([*turns(2), inside("a beginning", 50)]))
    assert outcome.usage == Usage(cache_write_other=1_800, input=50)
    assert [entry.tokens for entry in outcome.written] == [1_800]


def test_the_next_turn_reads_exactly_what_the_last_one_wrote() -> None:
    assert usage_of(after(ask(turns(1))), ask(turns(2))) == Usage(cache_read=1_600, cache_write_other=200)


def test_an_equal_call_reads_all_and_writes_nothing() -> None:
    assert usage_of(after(ask(turns(3))), ask(turns(3))) == Usage(cache_read=2_000)


def test_below_the_floor_nothing_is_written() -> None:
    outcome, _ = begin_cache_call(BY, CacheEntries(), ask([end("short", 1_023)]))
    assert (outcome.usage, outcome.written) == (Usage(input=1_023), ())
    assert begin_cache_call(BY, CacheEntries(), ask([end("enough", 1_024)]))[0].usage == Usage(cache_write_other=1_024)


def test_a_mark_is_written_beside_the_implicit_breakpoint() -> None:
    outcome, _ = begin_cache_call(BY, CacheEntries(), ask(turns(2), {0: "12h"}))
    assert [(entry.tokens, entry.ttl) for entry in outcome.written] == [(1_500, "12h"), (1_800, "30m")]
    assert outcome.usage == Usage(cache_write_other=1_800)


def test_of_many_marks_only_the_latest_are_written_without_an_error() -> None:
    marks: dict[int, Ttl] = dict.fromkeys(range(6), "30m")
    parts = [inside(f"block {index}", 2_000) for index in range(8)]
    implicit = begin_cache_call(BY, CacheEntries(), ask([*parts, end("last", 2_000)], marks))[0]
    assert [entry.tokens for entry in implicit.written] == [8_000, 10_000, 12_000, 18_000]
    explicit = begin_cache_call(BY, CacheEntries(), ask([*parts, end("last", 2_000)], marks, only_marks=True))[0]
    assert [entry.tokens for entry in explicit.written] == [6_000, 8_000, 10_000, 12_000]


def test_a_mark_on_the_implicit_breakpoint_says_how_long_it_lives() -> None:
    outcome, _ = begin_cache_call(BY, CacheEntries(), ask(turns(1), {1: "12h"}))
    assert [(entry.tokens, entry.ttl, entry.expires_at) for entry in outcome.written] == [(1_600, "12h", 43_200.0)]


def test_the_implicit_breakpoint_lives_as_long_as_the_call_asks() -> None:
    assert begin_cache_call(BY, CacheEntries(), ask(turns(1), ttl="12h"))[0].written[0].expires_at == 43_200


def test_without_the_implicit_breakpoint_and_without_marks_nothing_is_cached() -> None:
    entries = after(ask(turns(1)))
    outcome, _ = begin_cache_call(BY, entries, ask(turns(1), only_marks=True))
    assert (outcome.usage, outcome.written, outcome.read) == (Usage(input=1_600), (), None)


def test_a_mark_in_front_of_what_is_read_is_written_for_nothing() -> None:
    entries = after(ask(turns(2)))
    outcome, _ = begin_cache_call(BY, entries, ask(turns(2), {0: "30m"}))
    assert outcome.usage == Usage(cache_read=1_800)
    assert [entry.tokens for entry in outcome.written] == [1_500]


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ((Breakpoint(9, "30m"),), "breakpoint on block 9 of 2"),
        ((Breakpoint(0, "30m"), Breakpoint(0, "30m")), "two breakpoints on block 0"),
        ((Breakpoint(0, "5m"),), "ttl '5m'; known: 12h, 30m"),
    ],
)
def test_marks_that_cannot_be_are_refused(marks: tuple[Breakpoint, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        begin_cache_call(BY, CacheEntries(), CacheCall(SCOPE, ask(turns(1)).prefixes, marks, 0))


# Lifetimes


def test_an_entry_goes_half_an_hour_after_its_last_use() -> None:
    entries = after(ask(turns(1)), ask(turns(1), at=1_000))
    assert usage_of(entries, ask(turns(1), at=2_799)).cache_read == 1_600
    assert usage_of(entries, ask(turns(1), at=2_800)).cache_read == 0


def test_reading_a_longer_prefix_keeps_the_initial_one_alive() -> None:
    entries = after(ask(turns(1)[:1]), ask(turns(1), at=1_000))
    other = [turns(1)[0], end("something else")]
    assert usage_of(entries, ask(other, at=2_799)).cache_read == 1_500


# Looking up


def test_the_end_of_the_initial_developer_block_is_looked_up_however_far_back() -> None:
    entries = after(ask(turns(1)[:1]))
    assert usage_of(entries, ask(turns(40))).cache_read == 1_500


def test_twenty_earlier_endings_are_looked_up() -> None:
    entries = after(ask(turns(3)))
    assert usage_of(entries, ask(turns(23))).cache_read == 2_000
    assert usage_of(entries, ask(turns(24))).cache_read == 0


def test_the_first_marks_and_the_latest_are_looked_up_and_none_between() -> None:
    by = breakpoint_rules(floor=0, first=1, latest=2, lookback=0)
    parts = [inside(f"block {index}", 100) for index in range(9)]
    marks: dict[int, Ttl] = dict.fromkeys(range(6), "30m")
    reads = [usage_of(after(ask(parts, {index: "30m"}), by=by), ask(parts, marks), by).cache_read for index in range(6)]
    assert reads == [100, 0, 0, 0, 500, 600]


def test_without_latest_marks_only_the_first_are_looked_up() -> None:
    by = breakpoint_rules(floor=0, first=1, latest=0)
    parts = [inside(f"block {index}", 100) for index in range(3)]
    entries = after(ask(parts, {2: "30m"}), by=by)
    assert usage_of(entries, ask(parts, {0: "30m", 2: "30m"}), by).cache_read == 0


# Traps


def test_a_shared_beginning_without_a_breakpoint_of_its_own_is_not_read() -> None:
    system = turns(1)[0]
    one, other = [system, end("one task")], [system, end("another task")]
    assert usage_of(after(ask(one)), ask(other)).cache_read == 0
    assert usage_of(after(ask(one, {0: "30m"})), ask(other)).cache_read == 1_500


def test_going_over_to_explicit_breakpoints_misses_unless_one_sits_at_the_same_boundary() -> None:
    entries = after(ask(turns(1)))
    assert usage_of(entries, ask(turns(2), {0: "30m"}, only_marks=True)).cache_read == 0
    assert usage_of(entries, ask(turns(2), {1: "30m"}, only_marks=True)).cache_read == 1_600


def test_extending_the_same_message_misses() -> None:
    system = turns(1)[0]
    entries = after(ask([system, end("question")]))
    assert usage_of(entries, ask([system, inside("question"), end("more of it")])).cache_read == 0


def test_a_later_developer_message_is_no_point_to_look_at() -> None:
    system = turns(1)[0]
    entries = after(ask([system, inside("later instructions")], {1: "30m"}, only_marks=True))
    grown = [system, inside("later instructions"), end("question")]
    assert usage_of(entries, ask(grown)).cache_read == 0


def test_another_cache_key_reads_nothing() -> None:
    entries = after(ask(turns(1), key="one"))
    assert usage_of(entries, ask(turns(1), key="one")).cache_read == 1_600
    assert usage_of(entries, ask(turns(1), key="two")).cache_read == 0
