"""What sessions teach: rhythm by workspace, what a cache does by model and route, the newest word of each session."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.envelope import Event
from holdfast.events.payloads import CacheLearned, TurnStarted
from holdfast.planning.floors import Floor
from holdfast.planning.gaps import Gaps, Rhythm, counted
from holdfast.planning.lessons import Scene, learn, lesson_of
from holdfast.planning.memory import Learned, Memory, taught
from holdfast.planning.truths import Belief

HERE = Scene("anthropic:x", "direct", "w")

gaps = st.lists(st.floats(0, 100_000), max_size=8).map(counted)
beliefs = st.lists(st.booleans(), max_size=5)
memories = st.builds(
    lambda calls, tool, person, seen: Memory(calls=calls, gaps=Rhythm(tool, person), belief=believed(seen)),
    st.integers(1, 50),
    gaps,
    gaps,
    beliefs,
)


def believed(seen: list[bool]) -> Belief:
    belief = Belief()
    for read in seen:
        belief = belief.seen(read=read)
    return belief


def event(session: str, memory: Memory, scene: Scene = HERE) -> Event:
    return Event("id", 0.0, session, "system", lesson_of(memory, scene))


@given(st.lists(memories, max_size=6))
def test_lessons_teach_what_the_sessions_themselves_would_have(sessions: list[Memory]) -> None:
    expected = Learned()
    for memory in sessions:
        expected = taught(expected, memory)
    events = [event(f"s{number}", memory) for number, memory in enumerate(sessions)]
    assert learn(events, HERE) == expected


@given(memories, memories)
def test_of_each_session_only_the_newest_lesson_counts(early: Memory, late: Memory) -> None:
    assert learn([event("s", early), event("s", late)], HERE) == taught(Learned(), late)
    assert learn([event("s", early)], HERE, session_id="s") == Learned()


@given(memories)
def test_waits_belong_to_the_workspace_and_caches_to_model_and_route(memory: Memory) -> None:
    elsewhere = learn([event("s", memory, Scene(HERE.model, HERE.route, "other"))], HERE)
    assert (elsewhere.gaps, elsewhere.sessions) == (Rhythm(), 0)
    assert elsewhere.belief == memory.belief
    for scene in (Scene("anthropic:y", HERE.route, "w"), Scene(HERE.model, "gateway", "w")):
        other = learn([event("s", memory, scene)], HERE)
        assert (other.belief, other.floor) == (Belief(), Floor())
        assert other.gaps == taught(Learned(), memory).gaps


def test_a_session_that_changed_its_model_counts_once_for_its_waits_and_once_for_each_model() -> None:
    one = Memory(calls=3, gaps=Rhythm(person=counted([900.0])), belief=believed([True]))
    two = Memory(calls=5, gaps=Rhythm(person=counted([900.0, 40.0])), belief=believed([False]))
    events = [event("s", one), event("s", two, Scene("anthropic:y", HERE.route, "w"))]
    learned = learn(events, HERE)
    assert (learned.sessions, learned.calls) == (1, 5)
    assert learned.gaps.person == counted([900.0, 40.0, math.inf])
    assert learned.belief == one.belief


@given(st.lists(st.floats(allow_nan=False), max_size=20), st.floats(-1e9, 1e9), st.integers(), st.integers())
def test_lessons_that_make_no_sense_do_no_harm(counts: list[float], odds: float, one: int, two: int) -> None:
    strange = CacheLearned(HERE.model, HERE.route, "w", 1, tuple(counts), (), one, two, odds, one, two, one)
    learned = learn([Event("id", 0.0, "s", "system", strange)], HERE)
    assert 0 < learned.belief.chance < 1
    assert learned.gaps.all.chance(0, 300) >= 0
    assert learned.gaps.person == Gaps().add(math.inf)


def test_other_events_teach_nothing() -> None:
    assert learn([Event("id", 0.0, "s", "user", TurnStarted("", 0))], HERE) == Learned()
