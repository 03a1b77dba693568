"""Parameters learned by earlier sessions: each session records its own, and a new session combines them."""

from collections.abc import Iterable

import msgspec

from holdfast.events.envelope import Event
from holdfast.events.payloads import CacheLearned
from holdfast.planning.floors import Floor
from holdfast.planning.gaps import EDGES_SECONDS, Gaps, Rhythm
from holdfast.planning.memory import NOTHING_LEARNED, Learned, Memory, taught
from holdfast.planning.truths import Belief

LESSONS_MAX = 500
"""How many records are read when a session starts; older ones are ignored."""


class Scene(msgspec.Struct, frozen=True):
    """What learned parameters depend on: the model, the route to it, and the workspace."""

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


def learn(events: Iterable[Event], scene: Scene, *, session_id: str = "") -> Learned:
    """The parameters that a session starts with, from the events of other sessions, oldest first.

    Idle times depend on the workspace; cache behaviour depends on the model and the route. Only the newest record of
    each session, model and route counts.
    """
    newest: dict[tuple[str, str, str], CacheLearned] = {}
    for event in events:
        record = event.payload
        if isinstance(record, CacheLearned) and event.session_id != session_id:
            # Reinserted at the end: later evidence overrides earlier evidence where they disagree.
            newest.pop(key := (event.session_id, record.model, record.route), None)
            newest[key] = record
    # One record per session for idle times, or a session that used two models would count twice.
    idle_times = {
        session: record for (session, _, _), record in newest.items() if record.workspace_hash == scene.workspace_hash
    }
    learned = NOTHING_LEARNED
    for (session, model, route), record in newest.items():
        if idle_times.get(session) is record:
            learned = taught(learned, Memory(calls=record.calls, gaps=_rhythm(record)))
        if (model, route) == (scene.model, scene.route):
            learned = msgspec.structs.replace(
                learned, belief=learned.belief + _belief(record), floor=learned.floor + _floor(record)
            )
    return learned


def _rhythm(record: CacheLearned) -> Rhythm:
    return Rhythm(_gaps(record.tool_gaps), _gaps(record.person_gaps))


def _gaps(counts: tuple[float, ...]) -> Gaps:
    """Empty where the record was counted with other bucket edges."""
    fits = len(counts) == len(EDGES_SECONDS) + 1 and all(count >= 0 for count in counts)
    return Gaps(counts) if fits else Gaps()


def _belief(record: CacheLearned) -> Belief:
    # Adding to an empty belief applies the bound on the log odds, which a stored record may exceed.
    return Belief() + Belief(record.upgrade_log_odds, record.anchors_read, record.anchors_lost)


def _floor(record: CacheLearned) -> Floor:
    return Floor(record.floor_above_tokens, record.floor_misses, record.floor_upto_tokens)
