"""What holds of the caches that keep prompts of themselves, whatever is asked of them."""

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
LIFETIMES: tuple[Ttl, ...] = ("30m", "12h")

implicit = st.builds(implicit_rules, floor=st.sampled_from([0, 30, 90]), rounds_to=st.sampled_from([1, 16]))
breakpoints = st.builds(
    breakpoint_rules,
    floor=st.sampled_from([0, 30, 90]),
    first=st.integers(0, 2),
    latest=st.integers(0, 4),
    lookback=st.integers(0, 3),
)


def call_of(names: str, pieces: set[int], at: float, scope: CacheScope, key: str | None) -> CacheCall:
    """Capital letters end an eligible message."""
    parts = [
        ChainBlock("messages", name.encode(), 10 + index, is_ending=name.isupper()) for index, name in enumerate(names)
    ]
    seeds = chain_seeds(implicit_rules(), CacheParameters(scope.model, others={"prompt_cache_key": key}))
    marks = tuple(Breakpoint(piece, LIFETIMES[piece % 2]) for piece in sorted(pieces) if piece < len(names))
    return CacheCall(scope, chain_prefixes(seeds, parts), marks, at, explicit_only=len(pieces) % 2 == 1)


some_call = st.builds(
    call_of,
    st.text("xYZ", min_size=1, max_size=8),
    st.sets(st.integers(0, 7), max_size=7),
    st.sampled_from(MOMENTS),
    st.sampled_from(SCOPES),
    st.sampled_from(KEYS),
)


def unmarked(call: CacheCall) -> CacheCall:
    return msgspec.structs.replace(call, breakpoints=())


some_case = st.one_of(
    st.tuples(implicit, st.lists(some_call.map(unmarked), max_size=5), some_call.map(unmarked)),
    st.tuples(breakpoints, st.lists(some_call, max_size=5), some_call),
)
Case = tuple[CacheRules, list[CacheCall], CacheCall]


def play(by: CacheRules, history: list[CacheCall]) -> CacheEntries:
    entries = CacheEntries()
    for call in sorted(history, key=lambda each: each.at):
        _, entries = run_call(by, entries, call)
    return entries


def shared_tokens(one: CacheCall, other: CacheCall) -> int:
    """How many tokens two calls begin with in common; the key and the scope are part of it."""
    if one.scope != other.scope:
        return 0
    pairs = zip(one.prefixes, other.prefixes, strict=False)
    return max((mine.tokens for mine, theirs in pairs if mine.digest == theirs.digest), default=0)


@given(some_case)
def test_the_buckets_sum_to_the_prompt(case: Case) -> None:
    by, history, call = case
    usage = begin_cache_call(by, play(by, history), call)[0].usage
    assert usage.tokens_sent == call.tokens
    assert min(usage.input, usage.cache_read, usage.cache_write_other) >= 0
    assert usage.cache_write_5m == usage.cache_write_1h == 0


@given(some_case)
def test_what_is_read_is_a_beginning_that_was_sent_before(case: Case) -> None:
    by, history, call = case
    outcome, _ = begin_cache_call(by, play(by, history), call)
    assert outcome.usage.cache_read <= max((shared_tokens(call, earlier) for earlier in history), default=0)
    assert outcome.read is None or outcome.read.tokens >= by.tokens_min
    assert outcome.read is None or outcome.read.digest in {prefix.digest for prefix in call.prefixes}


@given(some_case)
def test_reads_are_rounded_down_by_less_than_one_step(case: Case) -> None:
    by, history, call = case
    outcome, _ = begin_cache_call(by, play(by, history), call)
    exact = outcome.read.tokens if outcome.read else 0
    assert outcome.usage.cache_read % by.reads_rounded_to == 0
    assert 0 <= exact - outcome.usage.cache_read < by.reads_rounded_to


@given(some_case)
def test_the_second_of_two_equal_calls_writes_nothing_where_all_marks_are_looked_up(case: Case) -> None:
    by, history, call = case
    by = msgspec.structs.replace(by, lookup_latest_breakpoints=50)
    entries = play(by, history)
    first, entries = run_call(by, entries, call)
    again, after = run_call(by, entries, call)
    assert again.written == ()
    assert again.usage.cache_write == 0
    assert again.usage.cache_read >= first.usage.cache_read
    assert after.by_key == entries.by_key


@given(some_case)
def test_at_most_as_many_breakpoints_are_written_as_the_rules_say(case: Case) -> None:
    by, history, call = case
    outcome, _ = begin_cache_call(by, play(by, history), call)
    assert by.kind == "implicit" or len(outcome.written) <= by.breakpoints_max
    assert all(entry.tokens >= by.tokens_min for entry in outcome.written)


@given(some_case)
def test_only_breakpoints_are_ever_written(case: Case) -> None:
    by, history, call = case
    outcome, _ = begin_cache_call(by, play(by, history), call)
    allowed = {mark.block_index for mark in call.breakpoints} | {
        i for i, prefix in enumerate(call.prefixes) if prefix.is_ending
    }
    places = {call.prefixes[index].digest for index in allowed}
    assert by.kind == "implicit" or {entry.digest for entry in outcome.written} <= places


@given(implicit, st.lists(some_call.map(unmarked), max_size=5), some_call.map(unmarked))
def test_a_cache_that_keeps_everything_reads_the_longest_living_beginning(
    by: CacheRules, history: list[CacheCall], call: CacheCall
) -> None:
    at_once = [msgspec.structs.replace(each, at=call.at) for each in history]
    longest = max((shared_tokens(call, earlier) for earlier in at_once), default=0)
    exact = longest if longest >= by.tokens_min else 0
    assert begin_cache_call(by, play(by, at_once), call)[0].usage.cache_read == exact - exact % by.reads_rounded_to
