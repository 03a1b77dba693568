"""What a session remembers of its cache follows from what the provider reported, call by call and ping by ping."""

import datetime
import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Stability, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import find_model, price_at
from holdfast.planning.floors import FLOOR_FACTOR_MAX, Floor
from holdfast.planning.gaps import Gaps, Rhythm, counted, expected
from holdfast.planning.memory import Anchor, Learned, Memory, Sent, after_call, after_ping, moved, taught
from holdfast.planning.policy import Pinged
from holdfast.planning.savings import Warmth, with_savings
from holdfast.planning.truths import LOG_ODDS_MAX, Belief

SONNET = find_model("anthropic:claude-sonnet-5-5")
PRICE = price_at(SONNET, datetime.date(2026, 11, 15), 1000)
TABLE = SONNET.cache.tokens_min
MARK, HOUR = (Mark(9),), (Mark(9, "1h"),)

sizes = st.integers(1, 200_000)
seconds = st.floats(0, 100_000)
seen = st.lists(st.tuples(sizes, st.booleans()), max_size=12)


@given(seconds, seconds)
def test_gaps_are_those_between_calls_however_often_the_cache_was_used_in_between(first: float, ping: float) -> None:
    memory = after_call(Memory(), Sent(0.0, MARK, 10), Usage(cache_write_5m=5000))
    pinged = after_ping(memory, Pinged(ping, "5m", Usage(cache_read=5000), 9, 10, 5000))
    assert pinged.last_at == 0.0
    assert pinged.used_at == ping
    later = after_call(pinged, Sent(first, MARK, 12, "person"), Usage(cache_read=5000))
    assert later.gaps == Rhythm(person=counted([first]))


@given(st.lists(st.tuples(seconds, st.booleans()), max_size=20))
def test_waiting_for_tools_and_for_people_is_counted_apart(waits: list[tuple[float, bool]]) -> None:
    rhythm = Rhythm()
    for gap, for_tool in waits:
        rhythm = rhythm.add(gap, "tool" if for_tool else "person")
    assert rhythm.of("tool") == counted(gap for gap, for_tool in waits if for_tool)
    assert rhythm.of("person") == counted(gap for gap, for_tool in waits if not for_tool)
    assert rhythm.all.total == len(waits)
    half = rhythm.scaled(len(waits) / 2)
    assert math.isclose(half.all.total, len(waits) / 2)
    assert math.isclose(half.tool.total * 2, rhythm.tool.total)


@given(st.floats(300, 3599), st.booleans(), st.booleans())
def test_only_an_anchor_on_a_warm_prefix_says_whether_lifetimes_upgrade(gap: float, telling: bool, read: bool) -> None:
    anchor = Anchor(9, 50_000, 0.0, sound=not telling, telling=telling)
    anchored = Memory(calls=1, last_at=0.0, used_at=0.0, anchor=anchor)
    later = after_call(anchored, Sent(gap, MARK, 12), Usage(cache_read=50_000 if read else 0, cache_write_5m=10))
    assert (later.belief.read, later.belief.lost) == ((int(read), int(not read)) if telling else (0, 0))
    assert (later.anchor is not None) == read


def test_a_call_in_time_or_far_too_late_says_nothing_of_upgrades() -> None:
    anchor = Anchor(9, 50_000, 0.0, sound=False, telling=True)
    anchored = Memory(calls=1, last_at=0.0, used_at=0.0, anchor=anchor)
    for gap in (299.0, 3600.0):
        later = after_call(anchored, Sent(gap, MARK, 12), Usage(cache_write_5m=50_000))
        assert later.belief == Belief()
    used = after_ping(anchored, Pinged(290.0, "5m", Usage(cache_read=50_000), 9, 10, 50_000))
    assert after_call(used, Sent(580.0, MARK, 12), Usage(cache_read=50_000)).belief == Belief()


def test_a_ping_for_the_hour_leaves_an_anchor_that_the_next_call_judges() -> None:
    memory = after_call(Memory(), Sent(0.0, MARK, 10), Usage(cache_write_5m=50_000))
    ping = Pinged(285.0, "1h", Usage(cache_read=50_000, cache_write_1h=400, input=8), 11, 12, 50_400)
    pinged = after_ping(memory, ping)
    assert pinged.anchor == Anchor(11, 50_400, 285.0, sound=False, telling=True)
    assert (pinged.tail_piece, pinged.tail_tokens, pinged.pieces) == (11, 50_400, 12)
    for read in (True, False):
        usage = Usage(cache_read=50_400 * read, cache_write_5m=100)
        later = after_call(pinged, Sent(2_000.0, MARK, 14, "person"), usage)
        assert later.belief == Belief().seen(read=read)


def test_what_is_written_for_the_hour_from_its_first_token_is_sound() -> None:
    fresh = after_call(Memory(), Sent(0.0, HOUR, 10), Usage(cache_write_1h=5_000))
    assert fresh.anchor == Anchor(9, 5_000, 0.0, sound=True)
    grown = after_call(fresh, Sent(10.0, HOUR, 12), Usage(cache_read=5_000, cache_write_1h=500))
    assert grown.anchor is not None
    assert grown.anchor.sound
    short = after_call(Memory(), Sent(0.0, MARK, 10), Usage(cache_write_5m=5_000))
    mixed = after_call(short, Sent(10.0, HOUR, 12), Usage(cache_read=5_000, cache_write_1h=500))
    assert mixed.anchor is not None
    assert not mixed.anchor.sound


def test_an_anchor_behind_what_others_wrote_or_what_was_partly_written_for_long_tells_nothing() -> None:
    found = after_call(Memory(), Sent(0.0, MARK, 10), Usage(cache_read=20_000, cache_write_5m=50))
    behind = after_call(found, Sent(10.0, HOUR, 12), Usage(cache_read=20_050, cache_write_1h=50))
    long = after_call(Memory(), Sent(0.0, HOUR, 10), Usage(cache_write_1h=20_000))
    mixed = after_call(long, Sent(10.0, MARK, 12), Usage(cache_read=20_000, cache_write_5m=9_000))
    anchored = after_call(mixed, Sent(20.0, HOUR, 14), Usage(cache_read=29_000, cache_write_1h=50))
    for memory in (behind, anchored):
        assert memory.anchor is not None
        assert (memory.anchor.sound, memory.anchor.telling) == (False, False)
        later = after_call(memory, Sent(1_500.0, MARK, 16), Usage(cache_read=29_050))
        assert later.belief == Belief()


def test_what_is_found_of_others_after_a_pause_is_no_beginning_that_we_know() -> None:
    memory = after_call(Memory(), Sent(0.0, MARK, 10), Usage(cache_write_5m=20_000))
    assert memory.base == "short"
    later = after_call(memory, Sent(1_500.0, MARK, 12), Usage(cache_read=5_000, cache_write_5m=15_050))
    assert later.base == "unknown"
    assert after_call(later, Sent(9_000.0, HOUR, 14), Usage(cache_write_1h=20_100)).base == "long"


@given(st.builds(Belief, st.floats(-6, 6)), st.builds(Belief, st.floats(-6, 6)))
def test_beliefs_add_up_and_stay_changeable(one: Belief, two: Belief) -> None:
    both = one + two
    assert abs(both.log_odds) <= LOG_ODDS_MAX
    assert both.log_odds == max(-LOG_ODDS_MAX, min(LOG_ODDS_MAX, one.log_odds + two.log_odds))


@given(seen)
def test_a_floor_is_never_contradicted_by_what_was_seen_last(prompts: list[tuple[int, bool]]) -> None:
    floor = Floor()
    for tokens, cached in prompts:
        floor = floor.seen(tokens, cached=cached)
    corrected = floor.corrected(TABLE)
    if prompts:
        tokens, cached = prompts[-1]
        if cached:
            assert corrected <= max(tokens, TABLE)
        elif floor.misses >= 2 and TABLE <= tokens < TABLE * FLOOR_FACTOR_MAX and floor.above_tokens == tokens:
            assert corrected > tokens
    assert corrected < TABLE * FLOOR_FACTOR_MAX


def test_one_miss_is_an_accident_and_two_are_a_floor() -> None:
    once = Floor().seen(TABLE + 500, cached=False)
    assert once.corrected(TABLE) == TABLE
    twice = once.seen(TABLE + 600, cached=False)
    assert twice.corrected(TABLE) == TABLE + 601
    assert twice.seen(TABLE + 400, cached=True).corrected(TABLE) == TABLE
    assert Floor().seen(TABLE - 100, cached=True).corrected(TABLE) == TABLE - 100
    far = Floor().seen(TABLE * 10, cached=False).seen(TABLE * 10, cached=False)
    assert far.corrected(TABLE) == TABLE


@given(seen, seen)
def test_what_two_sessions_saw_of_a_floor_adds_up(one: list[tuple[int, bool]], two: list[tuple[int, bool]]) -> None:
    first, second = Floor(), Floor()
    for tokens, cached in one:
        first = first.seen(tokens, cached=cached)
    for tokens, cached in two:
        second = second.seen(tokens, cached=cached)
    both = first + second
    assert both.misses <= first.misses + second.misses
    assert first + Floor() == first
    if second.upto_tokens is not None:
        assert both.corrected(TABLE) <= max(second.upto_tokens, TABLE)


def test_a_prompt_without_a_mark_at_its_end_says_nothing_of_the_floor() -> None:
    plain = after_call(Memory(), Sent(0.0, (), 10, floor_tokens=1_000), Usage(input=5_000))
    early = after_call(Memory(), Sent(0.0, (Mark(3),), 10, floor_tokens=1_000), Usage(input=5_000))
    assert plain.floor == early.floor == Floor()
    late = Sent(0.0, MARK, 10, floor_tokens=1_000)
    assert after_call(Memory(), late, Usage(input=5_000)).floor == Floor(5_000, 1)
    assert after_call(Memory(), late, Usage(input=900)).floor == Floor()
    assert after_call(Memory(), late, Usage(cache_write_5m=1_000)).floor == Floor()
    assert after_call(Memory(), late, Usage(cache_write_5m=900)).floor == Floor(upto_tokens=900)


def test_a_session_teaches_the_next_one_its_gaps_its_end_and_what_it_saw() -> None:
    memory = Memory(calls=3, gaps=Rhythm(counted([5.0]), counted([900.0])), belief=Belief().seen(read=True))
    learned = taught(Learned(), memory)
    assert (learned.sessions, learned.calls) == (1, 3)
    assert learned.gaps.tool == counted([5.0])
    assert learned.gaps.person == counted([900.0, math.inf])
    assert learned.belief == memory.belief
    assert taught(learned, Memory()) == learned


def test_a_moved_prefix_leaves_the_rhythm_and_what_the_provider_was_seen_to_do() -> None:
    memory = after_call(Memory(), Sent(0.0, HOUR, 10, "tool", 1_000), Usage(input=2_000))
    memory = after_call(memory, Sent(9.0, HOUR, 10, "tool", 1_000), Usage(input=2_000))
    left = moved(memory)
    assert (left.gaps, left.floor, left.last_at, left.calls) == (memory.gaps, memory.floor, 9.0, 2)
    assert (left.anchor, left.used_at, left.pieces, left.tail_tokens) == (None, None, 0, 0)


class Lines:
    def lead(self, before: Piece | None, piece: Piece) -> bytes:
        return b""

    def close(self, last: Piece | None) -> bytes:
        return b""

    def mark(self, ttl: Ttl) -> bytes:
        return b""


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=30), st.data(), st.floats(0.2, 5))
def test_the_savings_of_the_marks_add_up_to_that_of_the_plan(
    lengths: list[int], data: st.DataObject, scale: float
) -> None:
    scroll = Scroll(Lines(), len)
    scroll.extend(
        Piece("history", "messages", Stability.GROWING, b"x" * size, markable=True, role="user") for size in lengths
    )
    places = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=4, unique=True).map(sorted))
    ttl: Ttl = data.draw(st.sampled_from(["5m", "1h"]))
    prompt = round(sum(lengths) * scale)
    hit = data.draw(st.integers(0, prompt))
    gaps = expected(counted([10.0, 900.0]), Gaps())
    marks = with_savings(
        tuple(Mark(piece, ttl) for piece in places), scroll, Warmth(prompt, hit), gaps, rules=SONNET.cache, price=PRICE
    )
    assert [mark.piece for mark in marks] == places
    upto = min(prompt, round(sum(lengths[: places[-1] + 1]) * prompt / sum(lengths))) if places else 0
    write = PRICE.cache_write_5m if ttl == "5m" else PRICE.cache_write_1h
    back = Decimal(gaps.chance(0, SONNET.cache.ttls_seconds[ttl]))
    gained = back * (PRICE.input - PRICE.cache_read) * upto - (write - PRICE.input) * max(0, upto - hit)
    assert abs(sum(mark.saving_usd for mark in marks) - gained / 1_000_000) < Decimal("0.0000001")


@given(sizes, sizes)
def test_a_reply_is_in_no_entry_until_a_ping_takes_it_along(prompt: int, reply: int) -> None:
    memory = after_call(Memory(), Sent(0.0, MARK, 10), Usage(cache_write_5m=prompt, output=reply))
    assert memory.reply_tokens == reply
    plain = after_ping(memory, Pinged(280.0, "5m", Usage(cache_read=prompt), 9, 10, prompt))
    assert plain.reply_tokens == reply
    with_it = Usage(cache_read=prompt, cache_write_1h=reply)
    assert after_ping(memory, Pinged(280.0, "1h", with_it, 11, 12, prompt + reply)).reply_tokens == 0
    assert moved(memory).reply_tokens == 0
