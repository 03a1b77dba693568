"""A cache that stores every prompt by itself: what it reads, how it rounds, and its TTLs."""

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

RULES = implicit_rules()


def blocks(count: int, tokens: int = 600) -> list[ChainBlock]:
    return [chain_block(f"block {index}", tokens) for index in range(count)]


def make_call(parts: list[ChainBlock], *, at: float = 0.0, ttl: str | None = None, **others: str) -> CacheCall:
    seeds = chain_seeds(RULES, CacheParameters("model", others=others))
    return CacheCall(SCOPE, chain_prefixes(seeds, parts), (), at, ttl)


def entries_after(*calls: CacheCall) -> CacheEntries:
    entries = CacheEntries()
    for cache_call in calls:
        _, entries = run_call(RULES, entries, cache_call)
    return entries


def usage_of(entries: CacheEntries, cache_call: CacheCall, cache_rules: CacheRules = RULES) -> Usage:
    return begin_cache_call(cache_rules, entries, cache_call)[0].usage


def test_the_first_call_pays_plain_input_and_nothing_for_writing() -> None:
    assert usage_of(CacheEntries(), make_call(blocks(3))) == Usage(input=1_800)


def test_an_earlier_prompt_is_read_rounded_down() -> None:
    assert usage_of(entries_after(make_call(blocks(3))), make_call(blocks(4))) == Usage(
        input=2_400 - 1_792, cache_read=1_792
    )


def test_without_rounding_reads_are_exact() -> None:
    exact = implicit_rules(rounds_to=1)
    assert usage_of(entries_after(make_call(blocks(3))), make_call(blocks(4)), exact) == Usage(
        input=600, cache_read=1_800
    )


def test_a_prefix_shared_by_two_prompts_is_read_though_neither_ended_there() -> None:
    other = [*blocks(2), chain_block("another", 600)]
    assert usage_of(entries_after(make_call(blocks(3))), make_call(other)).cache_read == 1_152


def test_a_shared_prefix_below_the_minimum_is_not_read() -> None:
    other = [*blocks(1), chain_block("another", 600)]
    assert usage_of(entries_after(make_call(blocks(3))), make_call(other)).cache_read == 0


def test_a_prefix_of_exactly_the_minimum_is_read() -> None:
    minimal = [chain_block("floor", 1_024)]
    assert usage_of(entries_after(make_call(minimal)), make_call(minimal)).cache_read == 1_024


def test_an_entry_expires_when_it_is_unused_for_its_ttl() -> None:
    entries = entries_after(make_call(blocks(3)))
    assert usage_of(entries, make_call(blocks(3), at=299)).cache_read == 1_792
    assert usage_of(entries, make_call(blocks(3), at=300)).cache_read == 0


def test_every_read_refreshes_all_shorter_prefixes() -> None:
    entries = entries_after(make_call(blocks(3)), make_call(blocks(3), at=200))
    shorter = [*blocks(2), chain_block("another", 600)]
    assert usage_of(entries, make_call(shorter, at=499)).cache_read == 1_152
    assert usage_of(entries, make_call(shorter, at=500)).cache_read == 0


def test_a_call_can_request_another_ttl() -> None:
    entries = entries_after(make_call(blocks(3), ttl="24h"))
    assert usage_of(entries, make_call(blocks(3), at=86_399)).cache_read == 1_792
    assert usage_of(entries, make_call(blocks(3), at=86_400)).cache_read == 0


def test_a_longer_ttl_extends_existing_entries() -> None:
    entries = entries_after(make_call(blocks(3)), make_call(blocks(3), at=100, ttl="24h"))
    assert usage_of(entries, make_call(blocks(3), at=10_000)).cache_read == 1_792


def test_a_shorter_ttl_shortens_nothing() -> None:
    entries = entries_after(make_call(blocks(3), ttl="24h"), make_call(blocks(3), at=100))
    assert usage_of(entries, make_call(blocks(3), at=10_000)).cache_read == 1_792


def test_an_unknown_ttl_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="'48h'; known: in_memory, 24h"):
        begin_cache_call(RULES, CacheEntries(), make_call(blocks(1), ttl="48h"))


def test_rules_without_ttls_are_refused() -> None:
    with pytest.raises(UserError, match="add ttls_seconds"):
        begin_cache_call(CacheRules(kind="implicit", tokens_min=0), CacheEntries(), make_call(blocks(1)))


def test_breakpoints_are_refused() -> None:
    with_breakpoint = msgspec.structs.replace(make_call(blocks(1)), breakpoints=(Breakpoint(0),))
    with pytest.raises(UserError, match="takes no breakpoints"):
        begin_cache_call(RULES, CacheEntries(), with_breakpoint)


def test_a_call_that_starts_before_the_first_response_starts_reads_nothing() -> None:
    outcome, entries = begin_cache_call(RULES, CacheEntries(), make_call(blocks(3)))
    assert usage_of(entries, make_call(blocks(3))).cache_read == 0
    assert usage_of(publish_entries(entries, outcome), make_call(blocks(3))).cache_read == 1_792


def test_another_cache_key_reads_nothing() -> None:
    entries = entries_after(make_call(blocks(3), prompt_cache_key="one"))
    assert usage_of(entries, make_call(blocks(3), prompt_cache_key="one")).cache_read == 1_792
    assert usage_of(entries, make_call(blocks(3), prompt_cache_key="two")).cache_read == 0
    assert usage_of(entries, make_call(blocks(3))).cache_read == 0


def test_a_parameter_of_some_providers_invalidates_from_its_section_on() -> None:
    parts = [chain_block("system", 1_280, "system"), *blocks(1)]
    entries = entries_after(make_call(parts, tool_config="auto"))
    assert usage_of(entries, make_call(parts, tool_config="auto")).cache_read == 1_792
    assert usage_of(entries, make_call(parts, tool_config="none")).cache_read == 1_280


def test_a_parameter_that_the_rules_do_not_name_changes_nothing() -> None:
    entries = entries_after(make_call(blocks(3)))
    assert usage_of(entries, make_call(blocks(3), verbosity="low")).cache_read == 1_792
