"""The adaptive policy for any prompt, idle times and provider: breakpoints are valid, few, and read again."""

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
MULTIPLIERS = price_multipliers(PRICE)


class Lines:
    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return b"\n"

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return b"\n"

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b"*"


@st.composite
def encoded_blocks(draw: st.DrawFn, section: PromptSection, *, volatile: bool = False) -> EncodedBlock:
    stability = Stability.GROWING if section == "messages" else Stability.EPOCH
    is_volatile = volatile and draw(st.booleans())
    return EncodedBlock(
        section,
        section,
        Stability.VOLATILE if is_volatile else stability,
        b"x" * draw(st.integers(2, 3000)),
        accepts_breakpoint=draw(st.booleans()),
        role="user" if section == "messages" else None,
        ephemeral=is_volatile and draw(st.booleans()),
    )


prefixes = st.tuples(st.lists(encoded_blocks("tools"), max_size=3), st.lists(encoded_blocks("system"), max_size=3)).map(
    lambda both: [*both[0], *both[1]]
)
turns = st.lists(
    st.tuples(
        st.lists(encoded_blocks("messages", volatile=True), min_size=1, max_size=30),
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
@given(prefixes, turns, learned)
def test_breakpoints_are_few_valid_and_never_on_volatile_blocks(
    prefix: list[EncodedBlock],
    calls: list[tuple[list[EncodedBlock], float, float]],
    learned_parameters: LearnedParameters,
) -> None:
    policy = AdaptivePolicy(learned_parameters, keep_alive=True)
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend(prefix)
    at = 1_000.0
    for number, (new, idle_seconds, share) in enumerate(calls):
        at += idle_seconds
        request_buffer.extend(new)
        moment = PlanningMoment(
            request_buffer, SONNET.cache, PRICE, at, idle_seconds if number else None, "user" if number else "start"
        )
        breakpoints = policy.choose_breakpoints(moment)
        assert len(breakpoints) <= SONNET.cache.breakpoints_max
        assert [breakpoint.block_index for breakpoint in breakpoints] == sorted(
            {breakpoint.block_index for breakpoint in breakpoints}
        )
        for breakpoint in breakpoints:
            block = request_buffer.blocks[breakpoint.block_index]
            assert block.accepts_breakpoint
            assert block.stability < Stability.VOLATILE
            assert not block.ephemeral
        ttls_seconds = [SONNET.cache.ttls_seconds[breakpoint.ttl] for breakpoint in breakpoints]
        assert ttls_seconds == sorted(ttls_seconds, reverse=True)
        read_tokens = int(share * request_buffer.tokens_total)
        policy.record_usage(
            moment, Usage(cache_read=read_tokens, cache_write_5m=request_buffer.tokens_total - read_tokens)
        )
        ping = policy.next_ping(moment, 0, "user")
        assert ping is None or ping.after_seconds in (285, 3585)


@given(st.lists(st.floats(0, 1_000_000), max_size=40), st.floats(0, 90_000), st.floats(0, 90_000))
def test_probabilities_are_within_bounds_and_add_up(idle_seconds_list: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    expected = expected_idle_times(count_idle_times(idle_seconds_list), IdleTimes())
    inside = expected.probability(low, high)
    assert -1e-9 <= inside <= 1 + 1e-9
    assert math.isclose(expected.probability(0, low) + inside + expected.probability(high, math.inf), 1.0, abs_tol=1e-9)
    assert expected.probability(low, high, given_seconds=low) >= inside - 1e-9


def test_observations_of_a_session_gradually_outweigh_the_prior() -> None:
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
def test_one_hour_is_chosen_only_if_its_expected_saving_exceeds_its_price(
    written: int, rest: int, pause: float, pauses_left: float, upgrade: float
) -> None:
    stakes = TtlStakes(prompt=written + rest, written=written, unanchored=written + rest)
    chosen = choose_ttl(stakes, PlanProbabilities(pause, pauses_left, upgrade), MULTIPLIERS, hour_chain=False)
    extra_write, saved = (
        float(MULTIPLIERS.write_1h - MULTIPLIERS.write_5m),
        float(MULTIPLIERS.write_5m - MULTIPLIERS.read),
    )
    pays = upgrade * pause * saved * stakes.unanchored > extra_write * written
    assert (chosen.reach == "anchor") == pays
    assert chosen.gain_units >= 0
    assert chosen.reason


@given(st.floats(0, 5), st.floats(0, 1))
def test_without_ttl_upgrades_a_prompt_written_anyway_gets_one_hour_if_it_pays(
    pauses_left: float, pause: float
) -> None:
    stakes = TtlStakes(prompt=50_000, written=50_000, unanchored=50_000)
    chosen = choose_ttl(stakes, PlanProbabilities(pause, pauses_left, upgrade=0.0), MULTIPLIERS, hour_chain=False)
    pays = pauses_left * float(MULTIPLIERS.write_5m - MULTIPLIERS.read) > float(
        MULTIPLIERS.write_1h - MULTIPLIERS.write_5m
    )
    assert (chosen.reach == "hour") == pays


@given(st.lists(st.booleans(), max_size=30))
def test_a_belief_follows_observations_and_can_be_unlearned(observations: list[bool]) -> None:
    belief = UpgradeBelief()
    for read in observations:
        before = belief.probability
        belief = belief.with_observation(read=read)
        assert belief.probability >= before if read else belief.probability <= before
    assert (belief.read, belief.lost) == (observations.count(True), observations.count(False))
    for _ in range(8):
        belief = belief.with_observation(read=False)
    assert belief.probability < 0.1
    for _ in range(8):
        belief = belief.with_observation(read=True)
    assert belief.probability > 0.9


@given(amounts, amounts, st.floats(0, 1), st.lists(st.floats(0, 20_000), max_size=30))
def test_an_idle_cache_is_pinged_only_if_that_is_expected_to_pay(
    prompt: int, reply: int, upgrade: float, idle_seconds_list: list[float]
) -> None:
    idle = IdleSession(prompt, 0, "5m", 0.0, upgrade, reply)
    expected = expected_idle_times(count_idle_times(idle_seconds_list), IdleTimes())
    ping = plan_ping(idle, expected, MULTIPLIERS)
    read, saved = float(MULTIPLIERS.read), float(MULTIPLIERS.write_5m - MULTIPLIERS.read)
    refresh_gain = expected.probability(300, 585, given_seconds=285) * saved - read
    upgrade_saving = upgrade * expected.probability(300, 3885, given_seconds=285) * saved * (prompt + reply)
    upgrade_cost = read * prompt + float(MULTIPLIERS.write_1h) * reply
    if refresh_gain > 0 or upgrade_saving - upgrade_cost > CLOSING_TOKENS:
        assert ping is not None
    if upgrade_saving <= upgrade_cost:
        assert ping is None or ping.ttl == "5m"
    if expected.probability(285, math.inf) == 0:
        assert ping is None
    if ping is not None:
        assert ping.after_seconds == 285
    # A prefix that a one-hour entry holds already needs no ping before that entry expires.
    hourly_ping = plan_ping(IdleSession(prompt, prompt, "5m", 0.0, upgrade), expected, MULTIPLIERS)
    assert hourly_ping is None or (hourly_ping.after_seconds, hourly_ping.ttl) == (3585, "1h")
    assert hourly_ping == plan_ping(IdleSession(prompt, 0, "1h", 0.0, upgrade), expected, MULTIPLIERS)


def test_breakpoints_that_are_surely_below_the_minimum_are_left_out() -> None:
    tokens_min = SONNET.cache.tokens_min
    prefix = EncodedBlock("system", "system", Stability.EPOCH, b"x" * (tokens_min // 2), accepts_breakpoint=True)
    message = EncodedBlock(
        "history", "messages", Stability.GROWING, b"x" * tokens_min, accepts_breakpoint=True, role="user"
    )
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend([prefix])
    moment = PlanningMoment(request_buffer, SONNET.cache, PRICE, 1_000.0)
    assert plan_adaptive_call(moment, CacheMemory()).plan.breakpoints == ()
    assert "below" in plan_adaptive_call(moment, CacheMemory()).plan.notes[0]
    request_buffer.extend([message])
    assert [breakpoint.block_index for breakpoint in plan_adaptive_call(moment, CacheMemory()).plan.breakpoints] == [1]
