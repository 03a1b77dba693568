"""Learned parameters: idle times per workspace, cache behaviour per model and route, one record per session."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheLearned
from holdfast.events.payloads.session import TurnStarted
from holdfast.planning.idle_times import IdleTimes, IdleTimesByCause, count_idle_times
from holdfast.planning.learned import (
    CacheMemory,
    LearnedParameters,
    LearningScope,
    ObservedFloor,
    UpgradeBelief,
    combine_learned,
    learned_after_session,
    make_learned_record,
)

HERE = LearningScope("anthropic:x", "direct", "w")

idle_times = st.lists(st.floats(0, 100_000), max_size=8).map(count_idle_times)
beliefs = st.lists(st.booleans(), max_size=5)
memories = st.builds(
    lambda calls, tool, person, observations: CacheMemory(
        calls=calls, idle_times=IdleTimesByCause(tool, person), upgrade_belief=belief_after(observations)
    ),
    st.integers(1, 50),
    idle_times,
    idle_times,
    beliefs,
)


def belief_after(observations: list[bool]) -> UpgradeBelief:
    belief = UpgradeBelief()
    for read in observations:
        belief = belief.with_observation(read=read)
    return belief


def event(session: str, memory: CacheMemory, scope: LearningScope = HERE) -> Event:
    return Event("id", 0.0, session, "system", make_learned_record(memory, scope))


@given(st.lists(memories, max_size=6))
def test_learned_records_combine_to_what_the_sessions_observed(sessions: list[CacheMemory]) -> None:
    expected = LearnedParameters()
    for memory in sessions:
        expected = learned_after_session(expected, memory)
    events = [event(f"s{number}", memory) for number, memory in enumerate(sessions)]
    assert combine_learned(events, HERE) == expected


@given(memories, memories)
def test_only_the_newest_record_of_each_session_counts(early: CacheMemory, late: CacheMemory) -> None:
    assert combine_learned([event("s", early), event("s", late)], HERE) == learned_after_session(
        LearnedParameters(), late
    )
    assert combine_learned([event("s", early)], HERE, session_id="s") == LearnedParameters()


@given(memories, memories)
def test_lengths_of_other_workspaces_count_until_this_one_has_its_own(other: CacheMemory, own: CacheMemory) -> None:
    elsewhere = event("s", other, LearningScope("anthropic:y", "gateway", "other"))
    assert [length.calls for length in combine_learned([elsewhere], HERE).lengths] == [other.calls]
    assert [length.calls for length in combine_learned([elsewhere, event("t", own)], HERE).lengths] == [own.calls]


@given(memories)
def test_idle_times_belong_to_the_workspace_and_cache_behaviour_to_model_and_route(memory: CacheMemory) -> None:
    elsewhere = combine_learned([event("s", memory, LearningScope(HERE.model, HERE.route, "other"))], HERE)
    assert (elsewhere.idle_times, elsewhere.sessions) == (IdleTimesByCause(), 0)
    assert elsewhere.upgrade_belief == memory.upgrade_belief
    for scope in (LearningScope("anthropic:y", HERE.route, "w"), LearningScope(HERE.model, "gateway", "w")):
        other = combine_learned([event("s", memory, scope)], HERE)
        assert (other.upgrade_belief, other.floor) == (UpgradeBelief(), ObservedFloor())
        assert other.idle_times == learned_after_session(LearnedParameters(), memory).idle_times


def test_a_session_that_switched_models_counts_once_for_idle_times_and_once_per_model() -> None:
    one = CacheMemory(
        calls=3, idle_times=IdleTimesByCause(user=count_idle_times([900.0])), upgrade_belief=belief_after([True])
    )
    two = CacheMemory(
        calls=5,
        idle_times=IdleTimesByCause(user=count_idle_times([900.0, 40.0])),
        upgrade_belief=belief_after([False]),
    )
    events = [event("s", one), event("s", two, LearningScope("anthropic:y", HERE.route, "w"))]
    learned = combine_learned(events, HERE)
    assert (learned.sessions, learned.calls) == (1, 5)
    assert learned.idle_times.user == count_idle_times([900.0, 40.0, math.inf])
    assert learned.upgrade_belief == one.upgrade_belief


@given(st.lists(st.floats(allow_nan=False), max_size=20), st.floats(-1e9, 1e9), st.integers(), st.integers())
def test_nonsensical_records_do_no_harm(counts: list[float], log_odds: float, one: int, two: int) -> None:
    strange = CacheLearned(HERE.model, HERE.route, "w", 1, tuple(counts), (), one, two, log_odds, one, two, one)
    learned = combine_learned([Event("id", 0.0, "s", "system", strange)], HERE)
    assert 0 < learned.upgrade_belief.probability < 1
    assert learned.idle_times.all.probability(0, 300) >= 0
    assert learned.idle_times.user == IdleTimes().add(math.inf)


def test_other_events_are_ignored() -> None:
    assert combine_learned([Event("id", 0.0, "s", "user", TurnStarted("", 0))], HERE) == LearnedParameters()
