"""What the sessions of a store have learned, put together for a reader, with the sessions that saw it."""

import msgspec

from holdfast.catalog.lookup import Models, known_model, shipped_models
from holdfast.events.envelope import Event
from holdfast.events.log import Log
from holdfast.events.payloads import CacheLearned, SessionStarted
from holdfast.planning.lessons import LESSONS_MAX, Scene, learn
from holdfast.planning.pings import LIFETIMES_SECONDS


class CacheLesson(msgspec.Struct, frozen=True):
    """What a model on a route was seen to do. `floor_tokens` is told only where it is another than the table's."""

    model: str
    route: str
    upgrade: float
    anchors_read: int
    anchors_lost: int
    floor_tokens: int | None
    sessions: tuple[str, ...]


class Rhythms(msgspec.Struct, frozen=True):
    """How sessions in a workspace wait; `pause` is the share of gaps that only the long lifetime outlives."""

    workspace: str | None
    sessions: int
    calls: int
    tool_gaps: float
    person_gaps: float
    pause: float


class Lessons(msgspec.Struct, frozen=True):
    caches: tuple[CacheLesson, ...]
    rhythms: tuple[Rhythms, ...]


def lessons_of(log: Log, models: Models | None = None) -> Lessons:
    events = log.lessons(limit=LESSONS_MAX)
    known = shipped_models() if models is None else models
    scenes: dict[tuple[str, str], list[Event]] = {}
    places: dict[str | None, Event] = {}
    for event in events:
        if isinstance(it := event.payload, CacheLearned):
            scenes.setdefault((it.model, it.route), []).append(event)
            places[it.workspace_hash] = event
    caches = tuple(_cache_lesson(Scene(*scene), seen, known) for scene, seen in sorted(scenes.items()))
    rhythms = tuple(_rhythms(log, place, event, events) for place, event in places.items())
    return Lessons(caches, tuple(sorted(rhythms, key=lambda rhythm: rhythm.workspace or "")))


def _cache_lesson(scene: Scene, events: list[Event], models: Models) -> CacheLesson:
    learned = learn(events, scene)
    row = known_model(scene.model, models)
    floor = learned.floor.corrected(row.cache.tokens_min) if row is not None else None
    return CacheLesson(
        model=scene.model,
        route=scene.route,
        upgrade=learned.belief.chance,
        anchors_read=learned.belief.read,
        anchors_lost=learned.belief.lost,
        floor_tokens=floor if row is not None and floor != row.cache.tokens_min else None,
        sessions=tuple(dict.fromkeys(event.session_id for event in events)),
    )


def _rhythms(log: Log, place: str | None, newest: Event, events: tuple[Event, ...]) -> Rhythms:
    learned = learn(events, Scene("", "", place))
    first = next(iter(log.read(newest.session_id)), None)
    path = first.payload.workspace_path if first and isinstance(first.payload, SessionStarted) else None
    # The end of each session counts as a gap in planning; here it is none.
    gaps, ends = learned.gaps.all, learned.sessions
    pause = gaps.chance(LIFETIMES_SECONDS["5m"], LIFETIMES_SECONDS["1h"]) if gaps.total > ends else 0.0
    share = gaps.total / (gaps.total - ends) if gaps.total > ends else 0.0
    return Rhythms(
        workspace=path,
        sessions=round(learned.sessions),
        calls=round(learned.calls),
        tool_gaps=learned.gaps.tool.total,
        person_gaps=max(0.0, learned.gaps.person.total - ends),
        pause=pause * share,
    )
