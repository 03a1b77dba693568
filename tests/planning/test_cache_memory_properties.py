"""A session's memory of its cache follows from the provider's reported usage, call by call and ping by ping."""

import datetime
import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.lookup import find_model, price_at
from holdfast.planning.idle_times import IdleTimes, IdleTimesByCause, count_idle_times, expected_idle_times
from holdfast.planning.learned import (
    FLOOR_FACTOR_MAX,
    LOG_ODDS_MAX,
    Anchor,
    CacheMemory,
    LearnedParameters,
    ObservedFloor,
    RequestRecord,
    UpgradeBelief,
    forget_cached,
    learned_after_session,
    memory_after_call,
    memory_after_ping,
)
from holdfast.planning.plan import PromptWarmth, add_savings
from holdfast.planning.policy import PingResult
from holdfast.types.prompt import Breakpoint, Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer
from holdfast.types.usage import Usage

SONNET = find_model("anthropic:claude-sonnet-5-5")
PRICE = price_at(SONNET, datetime.date(2026, 11, 15), 1000)
TABLE = SONNET.cache.tokens_min
SHORT, HOUR = (Breakpoint(9),), (Breakpoint(9, "1h"),)

sizes = st.integers(1, 200_000)
seconds = st.floats(0, 100_000)
observations = st.lists(st.tuples(sizes, st.booleans()), max_size=12)


@given(seconds, seconds)
def test_gaps_are_those_between_calls_however_often_the_cache_was_refreshed_in_between(
    first: float, ping: float
) -> None:
    memory = memory_after_call(CacheMemory(), RequestRecord(0.0, SHORT, 10), Usage(cache_write_5m=5000))
    pinged = memory_after_ping(memory, PingResult(ping, "5m", Usage(cache_read=5000), 9, 10, 5000))
    assert pinged.last_at == 0.0
    assert pinged.used_at == ping
    later = memory_after_call(pinged, RequestRecord(first, SHORT, 12, "user"), Usage(cache_read=5000))
    assert later.idle_times == IdleTimesByCause(user=count_idle_times([first]))


@given(st.lists(st.tuples(seconds, st.booleans()), max_size=20))
def test_waiting_for_tools_and_for_users_is_counted_separately(waits: list[tuple[float, bool]]) -> None:
    rhythm = IdleTimesByCause()
    for gap, for_tool in waits:
        rhythm = rhythm.add(gap, "tool" if for_tool else "user")
    assert rhythm.waiting_for("tool") == count_idle_times(gap for gap, for_tool in waits if for_tool)
    assert rhythm.waiting_for("user") == count_idle_times(gap for gap, for_tool in waits if not for_tool)
    assert rhythm.all.total == len(waits)
    half = rhythm.scaled_to(len(waits) / 2)
    assert math.isclose(half.all.total, len(waits) / 2)
    assert math.isclose(half.tool.total * 2, rhythm.tool.total)


@given(st.floats(300, 3599), st.booleans(), st.booleans())
def test_only_an_anchor_on_a_warm_prefix_shows_whether_ttls_are_upgraded(
    gap: float, shows_upgrade: bool, read: bool
) -> None:
    anchor = Anchor(9, 50_000, 0.0, is_sound=not shows_upgrade, is_evidence=shows_upgrade)
    anchored = CacheMemory(calls=1, last_at=0.0, used_at=0.0, anchor=anchor)
    later = memory_after_call(
        anchored, RequestRecord(gap, SHORT, 12), Usage(cache_read=50_000 if read else 0, cache_write_5m=10)
    )
    assert (later.upgrade_belief.read, later.upgrade_belief.lost) == (
        (int(read), int(not read)) if shows_upgrade else (0, 0)
    )
    assert (later.anchor is not None) == read


def test_a_call_in_time_or_far_too_late_shows_nothing_about_upgrades() -> None:
    anchor = Anchor(9, 50_000, 0.0, is_sound=False, is_evidence=True)
    anchored = CacheMemory(calls=1, last_at=0.0, used_at=0.0, anchor=anchor)
    for gap in (299.0, 3600.0):
        later = memory_after_call(anchored, RequestRecord(gap, SHORT, 12), Usage(cache_write_5m=50_000))
        assert later.upgrade_belief == UpgradeBelief()
    used = memory_after_ping(anchored, PingResult(290.0, "5m", Usage(cache_read=50_000), 9, 10, 50_000))
    assert (
        memory_after_call(used, RequestRecord(580.0, SHORT, 12), Usage(cache_read=50_000)).upgrade_belief
        == UpgradeBelief()
    )


def test_a_ping_with_an_hours_ttl_leaves_an_anchor_that_the_next_call_judges() -> None:
    memory = memory_after_call(CacheMemory(), RequestRecord(0.0, SHORT, 10), Usage(cache_write_5m=50_000))
    ping = PingResult(285.0, "1h", Usage(cache_read=50_000, cache_write_1h=400, input=8), 11, 12, 50_400)
    pinged = memory_after_ping(memory, ping)
    assert pinged.anchor == Anchor(11, 50_400, 285.0, is_sound=False, is_evidence=True)
    assert (pinged.tail_block, pinged.tail_tokens, pinged.blocks) == (11, 50_400, 12)
    for read in (True, False):
        usage = Usage(cache_read=50_400 * read, cache_write_5m=100)
        later = memory_after_call(pinged, RequestRecord(2_000.0, SHORT, 14, "user"), usage)
        assert later.upgrade_belief == UpgradeBelief().with_observation(read=read)


def test_a_prefix_written_for_the_hour_from_its_first_token_is_reliable() -> None:
    fresh = memory_after_call(CacheMemory(), RequestRecord(0.0, HOUR, 10), Usage(cache_write_1h=5_000))
    assert fresh.anchor == Anchor(9, 5_000, 0.0, is_sound=True)
    memory_after = memory_after_call(fresh, RequestRecord(10.0, HOUR, 12), Usage(cache_read=5_000, cache_write_1h=500))
    assert memory_after.anchor is not None
    assert memory_after.anchor.is_sound
    short = memory_after_call(CacheMemory(), RequestRecord(0.0, SHORT, 10), Usage(cache_write_5m=5_000))
    mixed = memory_after_call(short, RequestRecord(10.0, HOUR, 12), Usage(cache_read=5_000, cache_write_1h=500))
    assert mixed.anchor is not None
    assert not mixed.anchor.is_sound


def test_an_anchor_after_a_prefix_of_unknown_ttl_shows_nothing() -> None:
    read_from_others = memory_after_call(
        CacheMemory(), RequestRecord(0.0, SHORT, 10), Usage(cache_read=20_000, cache_write_5m=50)
    )
    after_others = memory_after_call(
        read_from_others, RequestRecord(10.0, HOUR, 12), Usage(cache_read=20_050, cache_write_1h=50)
    )
    long = memory_after_call(CacheMemory(), RequestRecord(0.0, HOUR, 10), Usage(cache_write_1h=20_000))
    mixed = memory_after_call(long, RequestRecord(10.0, SHORT, 12), Usage(cache_read=20_000, cache_write_5m=9_000))
    anchored = memory_after_call(mixed, RequestRecord(20.0, HOUR, 14), Usage(cache_read=29_000, cache_write_1h=50))
    for memory in (after_others, anchored):
        assert memory.anchor is not None
        assert (memory.anchor.is_sound, memory.anchor.is_evidence) == (False, False)
        later = memory_after_call(memory, RequestRecord(1_500.0, SHORT, 16), Usage(cache_read=29_050))
        assert later.upgrade_belief == UpgradeBelief()


def test_a_prefix_read_from_others_after_a_pause_has_an_unknown_start() -> None:
    memory = memory_after_call(CacheMemory(), RequestRecord(0.0, SHORT, 10), Usage(cache_write_5m=20_000))
    assert memory.base_ttl == "short"
    later = memory_after_call(memory, RequestRecord(1_500.0, SHORT, 12), Usage(cache_read=5_000, cache_write_5m=15_050))
    assert later.base_ttl == "unknown"
    assert memory_after_call(later, RequestRecord(9_000.0, HOUR, 14), Usage(cache_write_1h=20_100)).base_ttl == "long"


@given(st.builds(UpgradeBelief, st.floats(-6, 6)), st.builds(UpgradeBelief, st.floats(-6, 6)))
def test_beliefs_add_up_and_remain_changeable(first: UpgradeBelief, two: UpgradeBelief) -> None:
    both = first + two
    assert abs(both.log_odds) <= LOG_ODDS_MAX
    assert both.log_odds == max(-LOG_ODDS_MAX, min(LOG_ODDS_MAX, first.log_odds + two.log_odds))


@given(observations)
def test_a_floor_is_never_contradicted_by_the_last_observation(prompts: list[tuple[int, bool]]) -> None:
    floor = ObservedFloor()
    for tokens, cached in prompts:
        floor = floor.with_outcome(tokens, cached=cached)
    corrected = floor.corrected_floor(TABLE)
    if prompts:
        tokens, cached = prompts[-1]
        if cached:
            assert corrected <= max(tokens, TABLE)
        elif floor.misses >= 2 and TABLE <= tokens < TABLE * FLOOR_FACTOR_MAX and floor.uncached_tokens_max == tokens:
            assert corrected > tokens
    assert corrected < TABLE * FLOOR_FACTOR_MAX


def test_one_miss_is_an_accident_and_two_are_a_floor() -> None:
    once = ObservedFloor().with_outcome(TABLE + 500, cached=False)
    assert once.corrected_floor(TABLE) == TABLE
    twice = once.with_outcome(TABLE + 600, cached=False)
    assert twice.corrected_floor(TABLE) == TABLE + 601
    assert twice.with_outcome(TABLE + 400, cached=True).corrected_floor(TABLE) == TABLE
    assert ObservedFloor().with_outcome(TABLE - 100, cached=True).corrected_floor(TABLE) == TABLE - 100
    far = ObservedFloor().with_outcome(TABLE * 10, cached=False).with_outcome(TABLE * 10, cached=False)
    assert far.corrected_floor(TABLE) == TABLE


@given(observations, observations)
def test_two_sessions_observations_of_a_floor_add_up(
    left_sightings: list[tuple[int, bool]], two: list[tuple[int, bool]]
) -> None:
    first, second = ObservedFloor(), ObservedFloor()
    for tokens, cached in left_sightings:
        first = first.with_outcome(tokens, cached=cached)
    for tokens, cached in two:
        second = second.with_outcome(tokens, cached=cached)
    both = first + second
    assert both.misses <= first.misses + second.misses
    assert first + ObservedFloor() == first
    if second.cached_tokens_min is not None:
        assert both.corrected_floor(TABLE) <= max(second.cached_tokens_min, TABLE)


def test_a_prompt_without_a_breakpoint_at_its_end_shows_nothing_about_the_floor() -> None:
    plain = memory_after_call(CacheMemory(), RequestRecord(0.0, (), 10, floor_tokens=1_000), Usage(input=5_000))
    early = memory_after_call(
        CacheMemory(), RequestRecord(0.0, (Breakpoint(3),), 10, floor_tokens=1_000), Usage(input=5_000)
    )
    assert plain.floor == early.floor == ObservedFloor()
    late = RequestRecord(0.0, SHORT, 10, floor_tokens=1_000)
    assert memory_after_call(CacheMemory(), late, Usage(input=5_000)).floor == ObservedFloor(5_000, 1)
    assert memory_after_call(CacheMemory(), late, Usage(input=900)).floor == ObservedFloor()
    assert memory_after_call(CacheMemory(), late, Usage(cache_write_5m=1_000)).floor == ObservedFloor()
    assert memory_after_call(CacheMemory(), late, Usage(cache_write_5m=900)).floor == ObservedFloor(
        cached_tokens_min=900
    )


def test_a_session_passes_on_its_gaps_its_end_and_its_observations() -> None:
    memory = CacheMemory(
        calls=3,
        idle_times=IdleTimesByCause(count_idle_times([5.0]), count_idle_times([900.0])),
        upgrade_belief=UpgradeBelief().with_observation(read=True),
    )
    learned = learned_after_session(LearnedParameters(), memory)
    assert (learned.sessions, learned.calls) == (1, 3)
    assert learned.idle_times.tool == count_idle_times([5.0])
    assert learned.idle_times.user == count_idle_times([900.0, math.inf])
    assert learned.upgrade_belief == memory.upgrade_belief
    assert learned_after_session(learned, CacheMemory()) == learned


def test_a_changed_prefix_keeps_the_idle_times_and_the_observed_provider_behaviour() -> None:
    memory = memory_after_call(CacheMemory(), RequestRecord(0.0, HOUR, 10, "tool", 1_000), Usage(input=2_000))
    memory = memory_after_call(memory, RequestRecord(9.0, HOUR, 10, "tool", 1_000), Usage(input=2_000))
    memory_left = forget_cached(memory)
    assert (memory_left.idle_times, memory_left.floor, memory_left.last_at, memory_left.calls) == (
        memory.idle_times,
        memory.floor,
        9.0,
        2,
    )
    assert (memory_left.anchor, memory_left.used_at, memory_left.blocks, memory_left.tail_tokens) == (None, None, 0, 0)


class LineEncoder:
    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return b""

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return b""

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b""


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=30), st.data(), st.floats(0.2, 5))
def test_the_savings_of_the_breakpoints_add_up_to_that_of_the_plan(
    lengths: list[int], data: st.DataObject, scale: float
) -> None:
    buffer = RequestBuffer(LineEncoder(), len)
    buffer.extend(
        EncodedBlock("history", "messages", Stability.GROWING, b"x" * size, accepts_breakpoint=True, role="user")
        for size in lengths
    )
    places = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=4, unique=True).map(sorted))
    ttl: Ttl = data.draw(st.sampled_from(["5m", "1h"]))
    prompt = round(sum(lengths) * scale)
    hit = data.draw(st.integers(0, prompt))
    gaps = expected_idle_times(count_idle_times([10.0, 900.0]), IdleTimes())
    breakpoints = add_savings(
        tuple(Breakpoint(index, ttl) for index in places),
        buffer,
        PromptWarmth(prompt, hit),
        gaps,
        rules=SONNET.cache,
        price=PRICE,
    )
    assert [point.block_index for point in breakpoints] == places
    upto = min(prompt, round(sum(lengths[: places[-1] + 1]) * prompt / sum(lengths))) if places else 0
    write = PRICE.cache_write_5m if ttl == "5m" else PRICE.cache_write_1h
    back = Decimal(gaps.probability(0, SONNET.cache.ttls_seconds[ttl]))
    gained = back * (PRICE.input - PRICE.cache_read) * upto - (write - PRICE.input) * max(0, upto - hit)
    assert abs(sum(point.saving_usd for point in breakpoints) - gained / 1_000_000) < Decimal("0.0000001")


@given(sizes, sizes)
def test_a_reply_is_in_no_cache_entry_until_a_ping_includes_it(prompt: int, reply: int) -> None:
    memory = memory_after_call(CacheMemory(), RequestRecord(0.0, SHORT, 10), Usage(cache_write_5m=prompt, output=reply))
    assert memory.reply_tokens == reply
    plain = memory_after_ping(memory, PingResult(280.0, "5m", Usage(cache_read=prompt), 9, 10, prompt))
    assert plain.reply_tokens == reply
    usage_with_reply = Usage(cache_read=prompt, cache_write_1h=reply)
    assert (
        memory_after_ping(memory, PingResult(280.0, "1h", usage_with_reply, 11, 12, prompt + reply)).reply_tokens == 0
    )
    assert forget_cached(memory).reply_tokens == 0


def test_growth_is_what_each_prompt_adds_to_the_one_before() -> None:
    memory = CacheMemory()
    for number, tokens in enumerate((5_000, 5_400, 6_000)):
        memory = memory_after_call(memory, RequestRecord(number, SHORT, 10), Usage(input=tokens))
    assert memory.growth_tokens == 1_000
    # After the prefix changed, the size of the new prompt is no growth.
    rebuilt = memory_after_call(forget_cached(memory), RequestRecord(3.0, SHORT, 10), Usage(input=9_000))
    assert rebuilt.growth_tokens == 1_000
