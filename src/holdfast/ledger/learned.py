"""Summarises for a reader what the sessions of a store have learned about caches and idle times."""

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none, shipped_models
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.cache import CacheLearned
from holdfast.events.payloads.session import SessionStarted
from holdfast.planning.keep_alive import TTL_SECONDS
from holdfast.planning.learned import LEARNED_RECORDS_MAX, LearningScope, combine_learned


class LearnedCacheSummary(msgspec.Struct, frozen=True):
    """Observed behaviour of a model on a route. `floor_tokens` is set only where it differs from the catalog's.

    `upgrade_probability` is the probability that a longer TTL takes over a prefix that is still cached.
    """

    model: str
    route: str
    upgrade_probability: float
    anchors_read: int
    anchors_lost: int
    floor_tokens: int | None
    sessions: tuple[str, ...]


class IdleTimeSummary(msgspec.Struct, frozen=True):
    """Idle times of the sessions in a workspace; `pause_share` is the share that only the 1-hour TTL outlives."""

    workspace: str | None
    sessions: int
    calls: int
    tool_idle_times: float
    user_idle_times: float
    pause_share: float


class LearnedSummary(msgspec.Struct, frozen=True):
    caches: tuple[LearnedCacheSummary, ...]
    idle_times: tuple[IdleTimeSummary, ...]


def summarize_learned(log: EventLog) -> LearnedSummary:
    events = log.learned_events(limit=LEARNED_RECORDS_MAX)
    events_by_scope: dict[tuple[str, str], list[Event]] = {}
    latest_by_workspace: dict[str | None, Event] = {}
    for event in events:
        if isinstance(payload := event.payload, CacheLearned):
            events_by_scope.setdefault((payload.model, payload.route), []).append(event)
            latest_by_workspace[payload.workspace_hash] = event
    caches = tuple(
        _summarize_cache(LearningScope(*scope), scope_events, shipped_models())
        for scope, scope_events in sorted(events_by_scope.items())
    )
    latest = latest_by_workspace.items()
    idle_times = (_summarize_idle_times(log, workspace, event, events) for workspace, event in latest)
    return LearnedSummary(caches, tuple(sorted(idle_times, key=lambda summary: summary.workspace or "")))


def _summarize_cache(scope: LearningScope, events: list[Event], models: Models) -> LearnedCacheSummary:
    learned = combine_learned(events, scope)
    model = find_model_or_none(scope.model, models)
    floor = learned.floor.corrected_floor(model.cache.tokens_min) if model is not None else None
    return LearnedCacheSummary(
        model=scope.model,
        route=scope.route,
        upgrade_probability=learned.upgrade_belief.probability,
        anchors_read=learned.upgrade_belief.read,
        anchors_lost=learned.upgrade_belief.lost,
        floor_tokens=floor if model is not None and floor != model.cache.tokens_min else None,
        sessions=tuple(dict.fromkeys(event.session_id for event in events)),
    )


def _summarize_idle_times(
    log: EventLog, workspace_hash: str | None, newest: Event, events: tuple[Event, ...]
) -> IdleTimeSummary:
    learned = combine_learned(events, LearningScope("", "", workspace_hash))
    first_event = next(iter(log.read(newest.session_id)), None)
    started = first_event.payload if first_event else None
    path = started.workspace_path if isinstance(started, SessionStarted) else None
    # Planning counts the end of each session as one endless idle time; a reader does not. With n = idle_times.total,
    # e = ends and k = idle times between 5 minutes and 1 hour, the probability is k / n, the share wanted k / (n - e)
    # = (k / n) * (n / (n - e)): the correction is n / (n - e).
    idle_times, ends = learned.idle_times.all, learned.sessions
    correction = idle_times.total / (idle_times.total - ends) if idle_times.total > ends else 0.0
    return IdleTimeSummary(
        workspace=path,
        sessions=round(learned.sessions),
        calls=round(learned.calls),
        tool_idle_times=learned.idle_times.tool.total,
        user_idle_times=max(0.0, learned.idle_times.user.total - ends),
        pause_share=idle_times.probability(TTL_SECONDS["5m"], TTL_SECONDS["1h"]) * correction,
    )
