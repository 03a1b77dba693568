"""What earlier sessions have taught: kept with each session as it was seen, put together when another begins."""

from collections.abc import Iterable

import msgspec

from holdfast.events.envelope import Event
from holdfast.events.payloads import CacheLearned
from holdfast.planning.floors import Floor
from holdfast.planning.gaps import EDGES_SECONDS, Gaps, Rhythm
from holdfast.planning.memory import NOTHING_LEARNED, Learned, Memory, taught
from holdfast.planning.truths import Belief

LESSONS_MAX = 500
"""How many lessons are looked at when a session begins; older ones are forgotten."""


class Scene(msgspec.Struct, frozen=True):
    """Where a session plays: which model, how it is reached, and in which workspace."""

    model: str
    route: str
    workspace_hash: str | None = None


def lesson_of(memory: Memory, scene: Scene) -> CacheLearned:
    return CacheLearned(
        model=scene.model,
        route=scene.route,
        workspace_hash=scene.workspace_hash,
        calls=memory.calls,
        tool_gaps=memory.gaps.tool.counts,
        person_gaps=memory.gaps.person.counts,
        anchors_read=memory.belief.read,
        anchors_lost=memory.belief.lost,
        upgrade_log_odds=memory.belief.log_odds,
        floor_above_tokens=memory.floor.above_tokens,
        floor_misses=memory.floor.misses,
        floor_upto_tokens=memory.floor.upto_tokens,
    )


def learn(lessons: Iterable[Event], scene: Scene, *, session_id: str = "") -> Learned:
    """What a session starts with in this scene, from the events of others, oldest first.

    How long is waited is a matter of the workspace; what a cache does, of the model and the route. Of each session the
    newest lesson counts, and for each model that it spoke to.
    """
    newest: dict[tuple[str, str, str], CacheLearned] = {}
    for event in lessons:
        it = event.payload
        if isinstance(it, CacheLearned) and event.session_id != session_id:
            # Put at the end: what was seen last is believed most.
            newest.pop(key := (event.session_id, it.model, it.route), None)
            newest[key] = it
    rhythm = {session: it for (session, _, _), it in newest.items() if it.workspace_hash == scene.workspace_hash}
    learned = NOTHING_LEARNED
    for (session, model, route), it in newest.items():
        if rhythm.get(session) is it:
            learned = taught(learned, Memory(calls=it.calls, gaps=_rhythm(it)))
        if (model, route) == (scene.model, scene.route):
            learned = msgspec.structs.replace(
                learned, belief=learned.belief + _belief(it), floor=learned.floor + _floor(it)
            )
    return learned


def _rhythm(lesson: CacheLearned) -> Rhythm:
    return Rhythm(_gaps(lesson.tool_gaps), _gaps(lesson.person_gaps))


def _gaps(counts: tuple[float, ...]) -> Gaps:
    """Nothing, where they were counted by another scale."""
    fits = len(counts) == len(EDGES_SECONDS) + 1 and all(count >= 0 for count in counts)
    return Gaps(counts) if fits else Gaps()


def _belief(lesson: CacheLearned) -> Belief:
    return Belief() + Belief(lesson.upgrade_log_odds, lesson.anchors_read, lesson.anchors_lost)


def _floor(lesson: CacheLearned) -> Floor:
    return Floor(lesson.floor_above_tokens, lesson.floor_misses, lesson.floor_upto_tokens)
