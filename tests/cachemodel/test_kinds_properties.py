"""Properties of caches that store prompts by themselves, for any calls."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cache_calls import breakpoint_rules, implicit_rules

from holdfast.cachemodel.machine import begin_cache_call, run_call
from holdfast.cachemodel.tiers import CacheParameters, ChainBlock, chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheScope
from holdfast.catalog.schema import CacheRules
from holdfast.types.prompt import Breakpoint, Ttl

SCOPES = (CacheScope("a", "model"), CacheScope("b", "model"))
KEYS = (None, "key")
MOMENTS = (0.0, 100.0, 300.0, 1_799.0, 1_800.0, 43_200.0)
TTLS: tuple[Ttl, ...] = ("30m", "12h")

implicit = st.builds(implicit_rules, floor=st.sampled_from([0, 30, 90]), rounds_to=st.sampled_from([1, 16]))
breakpoints = st.builds(
    breakpoint_rules,
    floor=st.sampled_from([0, 30, 90]),
    first=st.integers(0, 2),
    latest=st.integers(0, 4),
    lookback=st.integers(0, 3),
)


def call_of(names: str, block_indexes: set[int], at: float, scope: CacheScope, key: str | None) -> CacheCall:
    """Capital letters end an eligible message."""
    parts = [
        ChainBlock("messages", name.encode(), 10 + index, is_ending=name.isupper()) for index, name in enumerate(names)
    ]
    seeds = chain_seeds(implicit_rules(), CacheParameters(scope.model, others={"prompt_cache_key": key}))
    placed = tuple(
        Breakpoint(block_index, TTLS[block_index % 2])
        for block_index in sorted(block_indexes)
        if block_index < len(names)
    )
    return CacheCall(scope, chain_prefixes(seeds, parts), placed, at, explicit_only=len(block_indexes) % 2 == 1)


some_call = st.builds(
    call_of,
    st.text("xYZ", min_size=1, max_size=8),
    st.sets(st.integers(0, 7), max_size=7),
    st.sampled_from(MOMENTS),
    st.sampled_from(SCOPES),
    st.sampled_from(KEYS),
)


def without_breakpoints(call: CacheCall) -> CacheCall:
    return msgspec.structs.replace(call, breakpoints=())


some_case = st.one_of(
    st.tuples(implicit, st.lists(some_call.map(without_breakpoints), max_size=5), some_call.map(without_breakpoints)),
    st.tuples(breakpoints, st.lists(some_call, max_size=5), some_call),
)
Case = tuple[CacheRules, list[CacheCall], CacheCall]


def entries_after(cache_rules: CacheRules, history: list[CacheCall]) -> CacheEntries:
    entries = CacheEntries()
    for call in sorted(history, key=lambda each: each.at):
        _, entries = run_call(cache_rules, entries, call)
    return entries


def shared_tokens(one: CacheCall, other: CacheCall) -> int:
    """How many tokens two calls share at their start; the key and the scope are part of it."""
    if one.scope != other.scope:
        return 0
    pairs = zip(one.prefixes, other.prefixes, strict=False)
    return max((mine.tokens for mine, theirs in pairs if mine.digest == theirs.digest), default=0)


@given(some_case)
def test_the_buckets_sum_to_the_prompt(case: Case) -> None:
    cache_rules, history, call = case
    usage = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)[0].usage
    assert usage.tokens_sent == call.tokens
    assert min(usage.input, usage.cache_read, usage.cache_write_other) >= 0
    assert usage.cache_write_5m == usage.cache_write_1h == 0


@given(some_case)
def test_only_a_prefix_that_was_sent_before_is_read(case: Case) -> None:
    cache_rules, history, call = case
    outcome, _ = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)
    assert outcome.usage.cache_read <= max((shared_tokens(call, earlier) for earlier in history), default=0)
    assert outcome.read is None or outcome.read.tokens >= cache_rules.tokens_min
    assert outcome.read is None or outcome.read.digest in {prefix.digest for prefix in call.prefixes}


@given(some_case)
def test_reads_are_rounded_down_by_less_than_one_step(case: Case) -> None:
    cache_rules, history, call = case
    outcome, _ = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)
    exact = outcome.read.tokens if outcome.read else 0
    assert outcome.usage.cache_read % cache_rules.reads_rounded_to == 0
    assert 0 <= exact - outcome.usage.cache_read < cache_rules.reads_rounded_to


@given(some_case)
def test_the_second_of_two_equal_calls_writes_nothing_if_all_breakpoints_are_looked_up(case: Case) -> None:
    cache_rules, history, call = case
    cache_rules = msgspec.structs.replace(cache_rules, lookup_latest_breakpoints=50)
    entries = entries_after(cache_rules, history)
    first, entries = run_call(cache_rules, entries, call)
    again, after = run_call(cache_rules, entries, call)
    assert again.written == ()
    assert again.usage.cache_write == 0
    assert again.usage.cache_read >= first.usage.cache_read
    assert after.by_key == entries.by_key


@given(some_case)
def test_at_most_the_allowed_number_of_breakpoints_is_written(case: Case) -> None:
    cache_rules, history, call = case
    outcome, _ = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)
    assert cache_rules.kind == "implicit" or len(outcome.written) <= cache_rules.breakpoints_max
    assert all(entry.tokens >= cache_rules.tokens_min for entry in outcome.written)


@given(some_case)
def test_only_breakpoints_are_ever_written(case: Case) -> None:
    cache_rules, history, call = case
    outcome, _ = begin_cache_call(cache_rules, entries_after(cache_rules, history), call)
    allowed = {breakpoint.block_index for breakpoint in call.breakpoints} | {
        i for i, prefix in enumerate(call.prefixes) if prefix.is_ending
    }
    digests = {call.prefixes[index].digest for index in allowed}
    assert cache_rules.kind == "implicit" or {entry.digest for entry in outcome.written} <= digests


@given(implicit, st.lists(some_call.map(without_breakpoints), max_size=5), some_call.map(without_breakpoints))
def test_an_implicit_cache_reads_the_longest_live_prefix(
    cache_rules: CacheRules, history: list[CacheCall], call: CacheCall
) -> None:
    at_once = [msgspec.structs.replace(each, at=call.at) for each in history]
    longest = max((shared_tokens(call, earlier) for earlier in at_once), default=0)
    exact = longest if longest >= cache_rules.tokens_min else 0
    assert (
        begin_cache_call(cache_rules, entries_after(cache_rules, at_once), call)[0].usage.cache_read
        == exact - exact % cache_rules.reads_rounded_to
    )
