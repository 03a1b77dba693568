"""Whatever the prompt, the rhythm and the provider: our marks are legal, few, and where they are read again."""

import datetime
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.lookup import find_model, price_at
from holdfast.economics.cost import price_multipliers
from holdfast.planning.adaptive_policy import AdaptivePolicy, plan_adaptive_call
from holdfast.planning.idle_times import (
    EDGES_SECONDS,
    IdleTimes,
    IdleTimesByCause,
    count_idle_times,
    expected_idle_times,
    prior_idle_times,
)
from holdfast.planning.keep_alive import CLOSING_TOKENS, IdleSession, plan_ping
from holdfast.planning.learned import CacheMemory, LearnedParameters, UpgradeBelief
from holdfast.planning.policy import PlanningMoment
from holdfast.planning.ttl import TtlStakes, choose_ttl
from holdfast.types.prompt import PlanProbabilities, PromptSection, Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer
from holdfast.types.usage import Usage

SONNET = find_model("anthropic:claude-sonnet-5-5")
PRICE = price_at(SONNET, datetime.date(2026, 11, 15), 1000)
TIMES = price_multipliers(PRICE)


class Lines:
    def separator(self, before: EncodedBlock | None, piece: EncodedBlock) -> bytes:
        return b"\n"

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return b"\n"

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b"*"


@st.composite
def pieces(draw: st.DrawFn, place: PromptSection, *, volatile: bool = False) -> EncodedBlock:
    stability = Stability.GROWING if place == "messages" else Stability.EPOCH
    shaky = volatile and draw(st.booleans())
    return EncodedBlock(
        place,
        place,
        Stability.VOLATILE if shaky else stability,
        b"x" * draw(st.integers(2, 3000)),
        accepts_breakpoint=draw(st.booleans()),
        role="user" if place == "messages" else None,
        ephemeral=shaky and draw(st.booleans()),
    )


heads = st.tuples(st.lists(pieces("tools"), max_size=3), st.lists(pieces("system"), max_size=3)).map(
    lambda both: [*both[0], *both[1]]
)
turns = st.lists(
    st.tuples(
        st.lists(pieces("messages", volatile=True), min_size=1, max_size=30),
        st.floats(0.1, 20_000),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=6,
)
learned = st.builds(
    LearnedParameters,
    idle_times=st.builds(IdleTimesByCause, *[st.lists(st.floats(0, 100_000), max_size=20).map(count_idle_times)] * 2),
    sessions=st.floats(0, 100),
    calls=st.floats(0, 10_000),
    upgrade_belief=st.builds(UpgradeBelief, log_odds=st.floats(-6, 6)),
)


@settings(max_examples=4 * settings().max_examples)
@given(heads, turns, learned)
def test_marks_are_few_legal_and_never_on_what_changes(
    head: list[EncodedBlock], played: list[tuple[list[EncodedBlock], float, float]], known: LearnedParameters
) -> None:
    policy = AdaptivePolicy(known, keep_alive=True)
    scroll = RequestBuffer(Lines(), len)
    scroll.extend(head)
    at = 1_000.0
    for number, (new, gap, share) in enumerate(played):
        at += gap
        scroll.extend(new)
        moment = PlanningMoment(
            scroll, SONNET.cache, PRICE, at, gap if number else None, "user" if number else "start"
        )
        marks = policy.choose_breakpoints(moment)
        assert len(marks) <= SONNET.cache.breakpoints_max
        assert [mark.block_index for mark in marks] == sorted({mark.block_index for mark in marks})
        for mark in marks:
            piece = scroll.blocks[mark.block_index]
            assert piece.accepts_breakpoint
            assert piece.stability < Stability.VOLATILE
            assert not piece.ephemeral
        lifetimes = [SONNET.cache.ttls_seconds[mark.ttl] for mark in marks]
        assert lifetimes == sorted(lifetimes, reverse=True)
        read = int(share * scroll.tokens_total)
        policy.record_usage(moment, Usage(cache_read=read, cache_write_5m=scroll.tokens_total - read))
        ping = policy.next_ping(moment, 0, "user")
        assert ping is None or ping.after_seconds in (285, 3585)


@given(st.lists(st.floats(0, 1_000_000), max_size=40), st.floats(0, 90_000), st.floats(0, 90_000))
def test_chances_are_chances_and_add_up(gaps: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    known = expected_idle_times(count_idle_times(gaps), IdleTimes())
    inside = known.probability(low, high)
    assert -1e-9 <= inside <= 1 + 1e-9
    assert math.isclose(known.probability(0, low) + inside + known.probability(high, math.inf), 1.0, abs_tol=1e-9)
    assert known.probability(low, high, given_seconds=low) >= inside - 1e-9


def test_a_session_is_believed_more_the_more_it_has_shown() -> None:
    quiet, pausing = count_idle_times([10.0] * 200), count_idle_times([10.0] * 100 + [1200.0] * 100)
    assert (
        expected_idle_times(IdleTimes(), quiet).probability(300, 3600)
        < prior_idle_times().probability(300, 3600)
        < 0.03
    )
    assert expected_idle_times(pausing, quiet).probability(300, 3600) > 0.15
    assert sum(count_idle_times([edge - 1 for edge in EDGES_SECONDS]).counts) == len(EDGES_SECONDS)


amounts = st.integers(1, 200_000)


@given(amounts, amounts, st.floats(0, 1), st.floats(0, 20), st.floats(0, 1))
def test_the_hour_is_chosen_only_where_its_expected_saving_is_higher_than_its_price(
    written: int, rest: int, pause: float, pauses_left: float, upgrade: float
) -> None:
    stakes = TtlStakes(prompt=written + rest, written=written, unanchored=written + rest)
    chosen = choose_ttl(stakes, PlanProbabilities(pause, pauses_left, upgrade), TIMES, hour_chain=False)
    dearer, saved = float(TIMES.write_1h - TIMES.write_5m), float(TIMES.write_5m - TIMES.read)
    pays = upgrade * pause * saved * stakes.unanchored > dearer * written
    assert (chosen.reach == "anchor") == pays
    assert chosen.gain_units >= 0
    assert chosen.reason


@given(st.floats(0, 5), st.floats(0, 1))
def test_a_prompt_that_is_written_anyway_is_written_for_the_hour_where_nothing_upgrades(
    pauses_left: float, pause: float
) -> None:
    stakes = TtlStakes(prompt=50_000, written=50_000, unanchored=50_000)
    chosen = choose_ttl(stakes, PlanProbabilities(pause, pauses_left, upgrade=0.0), TIMES, hour_chain=False)
    pays = pauses_left * float(TIMES.write_5m - TIMES.read) > float(TIMES.write_1h - TIMES.write_5m)
    assert (chosen.reach == "hour") == pays


@given(st.lists(st.booleans(), max_size=30))
def test_a_belief_follows_what_was_seen_and_can_be_unlearned(seen: list[bool]) -> None:
    belief = UpgradeBelief()
    for read in seen:
        before = belief.probability
        belief = belief.with_observation(read=read)
        assert belief.probability >= before if read else belief.probability <= before
    assert (belief.read, belief.lost) == (seen.count(True), seen.count(False))
    for _ in range(8):
        belief = belief.with_observation(read=False)
    assert belief.probability < 0.1
    for _ in range(8):
        belief = belief.with_observation(read=True)
    assert belief.probability > 0.9


@given(amounts, amounts, st.floats(0, 1), st.lists(st.floats(0, 20_000), max_size=30))
def test_an_idle_cache_is_used_again_only_where_that_is_expected_to_pay(
    prompt: int, reply: int, upgrade: float, gaps: list[float]
) -> None:
    idle = IdleSession(prompt, 0, "5m", 0.0, upgrade, reply)
    known = expected_idle_times(count_idle_times(gaps), IdleTimes())
    ping = plan_ping(idle, known, TIMES)
    read, saved = float(TIMES.read), float(TIMES.write_5m - TIMES.read)
    soon = known.probability(300, 585, given_seconds=285) * saved - read
    kept = upgrade * known.probability(300, 3885, given_seconds=285) * saved * (prompt + reply)
    written = read * prompt + float(TIMES.write_1h) * reply
    if soon > 0 or kept - written > CLOSING_TOKENS:
        assert ping is not None
    if kept <= written:
        assert ping is None or ping.ttl == "5m"
    if known.probability(285, math.inf) == 0:
        assert ping is None
    if ping is not None:
        assert ping.after_seconds == 285
    # What an entry with the long lifetime holds already needs no ping before that lapses.
    held = plan_ping(IdleSession(prompt, prompt, "5m", 0.0, upgrade), known, TIMES)
    assert held is None or (held.after_seconds, held.ttl) == (3585, "1h")
    assert held == plan_ping(IdleSession(prompt, 0, "1h", 0.0, upgrade), known, TIMES)


def test_marks_that_are_surely_below_the_floor_are_left_out() -> None:
    floor = SONNET.cache.tokens_min
    head = EncodedBlock("system", "system", Stability.EPOCH, b"x" * (floor // 2), accepts_breakpoint=True)
    said = EncodedBlock("history", "messages", Stability.GROWING, b"x" * floor, accepts_breakpoint=True, role="user")
    scroll = RequestBuffer(Lines(), len)
    scroll.extend([head])
    moment = PlanningMoment(scroll, SONNET.cache, PRICE, 1_000.0)
    assert plan_adaptive_call(moment, CacheMemory()).plan.breakpoints == ()
    assert "below" in plan_adaptive_call(moment, CacheMemory()).plan.notes[0]
    scroll.extend([said])
    assert [mark.block_index for mark in plan_adaptive_call(moment, CacheMemory()).plan.breakpoints] == [1]
