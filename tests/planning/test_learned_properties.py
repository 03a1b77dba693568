"""What sessions teach: rhythm by workspace, what a cache does by model and route, the newest word of each session."""

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

gaps = st.lists(st.floats(0, 100_000), max_size=8).map(count_idle_times)
beliefs = st.lists(st.booleans(), max_size=5)
memories = st.builds(
    lambda calls, tool, person, seen: CacheMemory(
        calls=calls, idle_times=IdleTimesByCause(tool, person), upgrade_belief=believed(seen)
    ),
    st.integers(1, 50),
    gaps,
    gaps,
    beliefs,
)


def believed(seen: list[bool]) -> UpgradeBelief:
    belief = UpgradeBelief()
    for read in seen:
        belief = belief.with_observation(read=read)
    return belief


def event(session: str, memory: CacheMemory, scene: LearningScope = HERE) -> Event:
    return Event("id", 0.0, session, "system", make_learned_record(memory, scene))


@given(st.lists(memories, max_size=6))
def test_lessons_teach_what_the_sessions_themselves_would_have(sessions: list[CacheMemory]) -> None:
    expected = LearnedParameters()
    for memory in sessions:
        expected = learned_after_session(expected, memory)
    events = [event(f"s{number}", memory) for number, memory in enumerate(sessions)]
    assert combine_learned(events, HERE) == expected


@given(memories, memories)
def test_of_each_session_only_the_newest_lesson_counts(early: CacheMemory, late: CacheMemory) -> None:
    assert combine_learned([event("s", early), event("s", late)], HERE) == learned_after_session(
        LearnedParameters(), late
    )
    assert combine_learned([event("s", early)], HERE, session_id="s") == LearnedParameters()


@given(memories)
def test_waits_belong_to_the_workspace_and_caches_to_model_and_route(memory: CacheMemory) -> None:
    elsewhere = combine_learned([event("s", memory, LearningScope(HERE.model, HERE.route, "other"))], HERE)
    assert (elsewhere.idle_times, elsewhere.sessions) == (IdleTimesByCause(), 0)
    assert elsewhere.upgrade_belief == memory.upgrade_belief
    for scene in (LearningScope("anthropic:y", HERE.route, "w"), LearningScope(HERE.model, "gateway", "w")):
        other = combine_learned([event("s", memory, scene)], HERE)
        assert (other.upgrade_belief, other.floor) == (UpgradeBelief(), ObservedFloor())
        assert other.idle_times == learned_after_session(LearnedParameters(), memory).idle_times


def test_a_session_that_changed_its_model_counts_once_for_its_waits_and_once_for_each_model() -> None:
    one = CacheMemory(
        calls=3, idle_times=IdleTimesByCause(user=count_idle_times([900.0])), upgrade_belief=believed([True])
    )
    two = CacheMemory(
        calls=5, idle_times=IdleTimesByCause(user=count_idle_times([900.0, 40.0])), upgrade_belief=believed([False])
    )
    events = [event("s", one), event("s", two, LearningScope("anthropic:y", HERE.route, "w"))]
    learned = combine_learned(events, HERE)
    assert (learned.sessions, learned.calls) == (1, 5)
    assert learned.idle_times.user == count_idle_times([900.0, 40.0, math.inf])
    assert learned.upgrade_belief == one.upgrade_belief


@given(st.lists(st.floats(allow_nan=False), max_size=20), st.floats(-1e9, 1e9), st.integers(), st.integers())
def test_lessons_that_make_no_sense_do_no_harm(counts: list[float], odds: float, one: int, two: int) -> None:
    strange = CacheLearned(HERE.model, HERE.route, "w", 1, tuple(counts), (), one, two, odds, one, two, one)
    learned = combine_learned([Event("id", 0.0, "s", "system", strange)], HERE)
    assert 0 < learned.upgrade_belief.probability < 1
    assert learned.idle_times.all.probability(0, 300) >= 0
    assert learned.idle_times.user == IdleTimes().add(math.inf)


def test_other_events_teach_nothing() -> None:
    assert combine_learned([Event("id", 0.0, "s", "user", TurnStarted("", 0))], HERE) == LearnedParameters()
