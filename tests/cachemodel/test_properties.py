"""Properties of the cache for any calls."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.support.cache_calls import chain_block, cost_units, rules

from holdfast.cachemodel.machine import begin_cache_call, publish_entries, run_call
from holdfast.cachemodel.tiers import CacheParameters, ChainBlock, chain_prefixes, chain_seeds
from holdfast.cachemodel.values import BlockKind, CacheCall, CacheEntries, CacheScope
from holdfast.catalog.schema import CacheRules
from holdfast.types.prompt import Breakpoint, Ttl

SCOPES = (CacheScope("a", "model"), CacheScope("b", "model"))
SEEDS = chain_seeds(rules(), CacheParameters("model"))
KINDS: tuple[BlockKind, ...] = ("plain", "tool_use", "tool_result")

some_rules = st.builds(
    rules,
    floor=st.sampled_from([0, 60, 200]),
    counting=st.sampled_from(["blocks", "positions"]),
    upgrade=st.booleans(),
    lookback=st.sampled_from([1, 3, 20]),
)


def blocks_named(names: str) -> list[ChainBlock]:
    return [chain_block(name, 10 + index, kind=KINDS[index % 3]) for index, name in enumerate(names)]


# Two names and a few moments, so that prompts often share a prefix and TTLs often just end.
some_names = st.text("xy", min_size=1, max_size=10)
some_parts = some_names.map(blocks_named)
MOMENTS = (0.0, 100.0, 299.0, 300.0, 600.0, 3_599.0, 3_700.0)


def call_of(names: str, block_indexes: set[int], long: int, at: float, scope: CacheScope) -> CacheCall:
    placed = sorted(block_index for block_index in block_indexes if block_index < len(names))
    ttls: list[Ttl] = ["1h" if index < long else "5m" for index in range(len(placed))]
    breakpoints = tuple(Breakpoint(block_index, ttl) for block_index, ttl in zip(placed, ttls, strict=True))
    return CacheCall(scope, chain_prefixes(SEEDS, blocks_named(names)), breakpoints, at)


some_call = st.builds(
    call_of,
    some_names,
    st.sets(st.integers(0, 9), max_size=4),
    st.integers(0, 4),
    st.sampled_from(MOMENTS),
    st.sampled_from(SCOPES),
)
calls = st.lists(some_call, max_size=5).map(lambda each: sorted(each, key=lambda call: call.at))


def entries_after(cache_rules: CacheRules, history: list[CacheCall]) -> CacheEntries:
    entries = CacheEntries()
    for call in history:
        _, entries = run_call(cache_rules, entries, call)
    return entries


@given(some_rules, calls, some_call)
def test_the_buckets_sum_to_the_prompt(cache_rules: CacheRules, history: list[CacheCall], call: CacheCall) -> None:
    usage = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)[0].usage
    buckets = (usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h)
    assert usage.tokens_sent == call.tokens
    assert all(bucket >= 0 for bucket in buckets)


@given(some_rules, calls, some_call)
def test_only_what_was_written_under_the_same_scope_is_read(
    cache_rules: CacheRules, history: list[CacheCall], call: CacheCall
) -> None:
    entries, written = CacheEntries(), set()
    for earlier in history:
        outcome, entries = run_call(cache_rules, entries, earlier)
        written |= {(entry.scope, entry.digest) for entry in outcome.written}
    read = begin_cache_call(cache_rules, entries, call)[0].read
    assert read is None or (read.scope, read.digest) in written
    assert read is None or (call.scope == read.scope and read.tokens >= cache_rules.tokens_min)


@given(some_rules, calls, some_call)
def test_a_call_made_twice_at_once_reads_up_to_its_last_breakpoint(
    cache_rules: CacheRules, history: list[CacheCall], call: CacheCall
) -> None:
    entries = entries_after(cache_rules, [*history, call])
    again = begin_cache_call(cache_rules, entries, call)[0].usage
    ends = [call.prefixes[breakpoint.block_index].tokens for breakpoint in call.breakpoints]
    assert again.cache_read == max((end for end in ends if end >= cache_rules.tokens_min), default=0)
    assert again.cache_write == 0


@given(some_rules, calls, some_call)
def test_an_hour_after_the_last_call_nothing_is_read(
    cache_rules: CacheRules, history: list[CacheCall], call: CacheCall
) -> None:
    late = CacheCall(call.scope, call.prefixes, call.breakpoints, 3_700.0 + 3_600.0)
    assert begin_cache_call(cache_rules, entries_after(cache_rules, history), late)[0].read is None


@given(some_rules, calls, some_call)
def test_nothing_expired_is_read(cache_rules: CacheRules, history: list[CacheCall], call: CacheCall) -> None:
    read = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)[0].read
    assert read is None or call.at < read.expires_at


@given(some_rules, calls, some_call, st.data())
def test_a_warmer_cache_never_costs_more(
    cache_rules: CacheRules, history: list[CacheCall], call: CacheCall, data: st.DataObject
) -> None:
    entries = entries_after(cache_rules, history)
    kept_keys = [key for key in entries.by_key if data.draw(st.booleans())]
    colder = CacheEntries({key: entries.by_key[key] for key in kept_keys})
    assert cost_units(begin_cache_call(cache_rules, entries, call)[0].usage) <= cost_units(
        begin_cache_call(cache_rules, colder, call)[0].usage
    )


@given(some_rules, calls, some_call)
def test_counting_runs_as_one_never_reads_less(
    cache_rules: CacheRules, history: list[CacheCall], call: CacheCall
) -> None:
    entries = entries_after(cache_rules, history)
    tokens_min, lookback = cache_rules.tokens_min, cache_rules.lookback_positions
    narrow = begin_cache_call(rules(floor=tokens_min, lookback=lookback, counting="blocks"), entries, call)[0].usage
    wide = begin_cache_call(rules(floor=tokens_min, lookback=lookback, counting="positions"), entries, call)[0].usage
    assert wide.cache_read >= narrow.cache_read


@given(calls, some_call)
def test_ttl_upgrades_never_read_less(history: list[CacheCall], call: CacheCall) -> None:
    def reads(upgrade: bool) -> int:
        cache_rules = rules(floor=0, upgrade=upgrade)
        return begin_cache_call(cache_rules, entries_after(cache_rules, history), call)[0].usage.cache_read

    assert reads(True) >= reads(False)


@given(some_rules, calls)
def test_a_written_entry_never_expires_earlier(cache_rules: CacheRules, history: list[CacheCall]) -> None:
    entries = CacheEntries()
    for call in history:
        _, after = run_call(cache_rules, entries, call)
        live = {(entry.scope, entry.digest): entry for entry in entries.live_entries(at=call.at)}
        assert all(after.by_key[key].expires_at >= entry.expires_at for key, entry in live.items())
        entries = after


@given(some_rules, calls, st.integers(1, 5))
def test_the_number_of_entries_is_bounded(cache_rules: CacheRules, history: list[CacheCall], limit: int) -> None:
    entries = CacheEntries()
    for call in history:
        outcome, entries = begin_cache_call(cache_rules, entries, call)
        entries = publish_entries(entries, outcome, entries_max=limit)
        assert len(entries.by_key) <= limit


@given(some_parts, st.data())
def test_a_prompt_extended_later_has_the_prefixes_of_one_built_at_once(
    parts: list[ChainBlock], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(parts)))
    start = chain_prefixes(SEEDS, parts[:cut])
    rest = chain_prefixes(SEEDS, parts[cut:], after=start[-1] if start else None)
    assert start + rest == chain_prefixes(SEEDS, parts)


@given(some_parts, some_parts)
def test_prefixes_agree_exactly_as_far_as_the_blocks_do(one: list[ChainBlock], other: list[ChainBlock]) -> None:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    pairs = list(zip(chain_prefixes(SEEDS, one), chain_prefixes(SEEDS, other), strict=False))
    assert [a.digest == b.digest for a, b in pairs] == [index < shared for index in range(len(pairs))]
    assert all(a.tokens < b.tokens for a, b in pairwise(chain_prefixes(SEEDS, one)))
