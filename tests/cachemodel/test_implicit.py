"""A cache that keeps every prompt of itself: what it reads, how it rounds, how long it keeps."""

import msgspec
import pytest
from tests.support.cache_calls import SCOPE, chain_block, implicit_rules

from holdfast.cachemodel.machine import begin_cache_call, publish_entries, run_call
from holdfast.cachemodel.tiers import CacheParameters, ChainBlock, chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheEntries
from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.prompt import Breakpoint
from holdfast.types.usage import Usage

BY = implicit_rules()


def blocks(count: int, tokens: int = 600) -> list[ChainBlock]:
    return [chain_block(f"block {index}", tokens) for index in range(count)]


def ask(parts: list[ChainBlock], *, at: float = 0.0, ttl: str | None = None, **others: str) -> CacheCall:
    seeds = chain_seeds(BY, CacheParameters("model", others=others))
    return CacheCall(SCOPE, chain_prefixes(seeds, parts), (), at, ttl)


def after(*calls: CacheCall) -> CacheEntries:
    entries = CacheEntries()
    for each in calls:
        _, entries = run_call(BY, entries, each)
    return entries


def usage_of(entries: CacheEntries, each: CacheCall, by: CacheRules = BY) -> Usage:
    return begin_cache_call(by, entries, each)[0].usage


def test_the_first_call_pays_plain_input_and_nothing_for_writing() -> None:
    assert usage_of(CacheEntries(), ask(blocks(3))) == Usage(input=1_800)


def test_what_was_sent_before_is_read_rounded_down() -> None:
    assert usage_of(after(ask(blocks(3))), ask(blocks(4))) == Usage(input=2_400 - 1_792, cache_read=1_792)


def test_where_nothing_is_rounded_reads_are_exact() -> None:
    exact = implicit_rules(rounds_to=1)
    assert usage_of(after(ask(blocks(3))), ask(blocks(4)), exact) == Usage(input=600, cache_read=1_800)


def test_a_beginning_that_two_prompts_share_is_read_though_neither_ended_there() -> None:
    other = [*blocks(2), chain_block("another", 600)]
    assert usage_of(after(ask(blocks(3))), ask(other)).cache_read == 1_152


def test_a_shared_beginning_below_the_floor_is_not_read() -> None:
    other = [*blocks(1), chain_block("another", 600)]
    assert usage_of(after(ask(blocks(3))), ask(other)).cache_read == 0


def test_the_floor_itself_is_enough() -> None:
    floor = [chain_block("floor", 1_024)]
    assert usage_of(after(ask(floor)), ask(floor)).cache_read == 1_024


def test_what_is_kept_goes_when_nobody_uses_it_for_its_lifetime() -> None:
    entries = after(ask(blocks(3)))
    assert usage_of(entries, ask(blocks(3), at=299)).cache_read == 1_792
    assert usage_of(entries, ask(blocks(3), at=300)).cache_read == 0


def test_every_read_starts_the_time_again_for_all_that_is_inside() -> None:
    entries = after(ask(blocks(3)), ask(blocks(3), at=200))
    shorter = [*blocks(2), chain_block("another", 600)]
    assert usage_of(entries, ask(shorter, at=499)).cache_read == 1_152
    assert usage_of(entries, ask(shorter, at=500)).cache_read == 0


def test_a_call_can_ask_for_another_lifetime() -> None:
    entries = after(ask(blocks(3), ttl="24h"))
    assert usage_of(entries, ask(blocks(3), at=86_399)).cache_read == 1_792
    assert usage_of(entries, ask(blocks(3), at=86_400)).cache_read == 0


def test_a_longer_lifetime_holds_for_what_was_kept_for_less() -> None:
    entries = after(ask(blocks(3)), ask(blocks(3), at=100, ttl="24h"))
    assert usage_of(entries, ask(blocks(3), at=10_000)).cache_read == 1_792


def test_a_shorter_lifetime_takes_nothing_away() -> None:
    entries = after(ask(blocks(3), ttl="24h"), ask(blocks(3), at=100))
    assert usage_of(entries, ask(blocks(3), at=10_000)).cache_read == 1_792


def test_an_unknown_lifetime_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="'48h'; known: in_memory, 24h"):
        begin_cache_call(BY, CacheEntries(), ask(blocks(1), ttl="48h"))


def test_rules_without_a_lifetime_are_refused() -> None:
    with pytest.raises(UserError, match="add ttls_seconds"):
        begin_cache_call(CacheRules(kind="implicit", tokens_min=0), CacheEntries(), ask(blocks(1)))


def test_marks_are_refused() -> None:
    marked = msgspec.structs.replace(ask(blocks(1)), breakpoints=(Breakpoint(0),))
    with pytest.raises(UserError, match="takes no breakpoints"):
        begin_cache_call(BY, CacheEntries(), marked)


def test_a_call_that_begins_before_the_first_response_does_reads_nothing() -> None:
    outcome, entries = begin_cache_call(BY, CacheEntries(), ask(blocks(3)))
    assert usage_of(entries, ask(blocks(3))).cache_read == 0
    assert usage_of(publish_entries(entries, outcome), ask(blocks(3))).cache_read == 1_792


def test_another_cache_key_reads_nothing() -> None:
    entries = after(ask(blocks(3), prompt_cache_key="one"))
    assert usage_of(entries, ask(blocks(3), prompt_cache_key="one")).cache_read == 1_792
    assert usage_of(entries, ask(blocks(3), prompt_cache_key="two")).cache_read == 0
    assert usage_of(entries, ask(blocks(3))).cache_read == 0


def test_a_parameter_of_some_providers_is_lost_from_its_tier_on() -> None:
    parts = [chain_block("system", 1_280, "system"), *blocks(1)]
    entries = after(ask(parts, tool_config="auto"))
    assert usage_of(entries, ask(parts, tool_config="auto")).cache_read == 1_792
    assert usage_of(entries, ask(parts, tool_config="none")).cache_read == 1_280


def test_a_parameter_that_the_rules_do_not_name_changes_nothing() -> None:
    entries = after(ask(blocks(3)))
    assert usage_of(entries, ask(blocks(3), verbosity="low")).cache_read == 1_792
