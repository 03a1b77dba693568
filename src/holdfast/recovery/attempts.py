"""Recovery attempts per incident as a fold over events, and whether another attempt is allowed."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from holdfast.events.log import Event
from holdfast.events.payloads.recovery import (
    FollowUp,
    RecoveryAttempted,
    RecoveryEnqueued,
    RecoveryEscalated,
    RecoveryFailed,
    RecoveryPayload,
    RecoverySucceeded,
    RecoveryTrigger,
    StepResult,
)
from holdfast.recovery.recipes import RecoveryRecipe, RecoveryRules, backoff_seconds

INCIDENTS_MAX = 1_000
"""How many incidents are kept; the least recently updated are dropped first."""

IncidentState = Literal["enqueued", "running", "succeeded", "failed", "exhausted"]


class Incident(msgspec.Struct, frozen=True):
    """One failure under one key. `attempts` counts since the last reset; `steps` are those of the recipe.

    Steps before `first_step` need not be repeated. `has_recovered` says that the last attempt succeeded.
    """

    key: str
    scenario: str
    state: IncidentState
    attempts: int = 0
    attempts_max: int | None = None
    steps: tuple[str, ...] = ()
    first_step: int = 0
    has_recovered: bool = False
    results: tuple[StepResult, ...] = ()
    trigger: RecoveryTrigger | None = None
    follow_up: FollowUp | None = None
    detail: str = ""
    last_failure: str = ""
    escalation: str = ""
    policy: str = ""
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def remaining_steps(self) -> tuple[str, ...]:
        return () if self.state == "succeeded" else self.steps[self.first_step :]


Incidents = Mapping[str, Incident]
"""The incidents of a session by key, the most recently updated last."""


class NextAttempt(msgspec.Struct, frozen=True):
    number: int
    first_step: int
    pause_seconds: float = 0.0


def fold_recovery_events(events: Iterable[Event]) -> Incidents:
    incidents: Incidents = {}
    for event in events:
        if isinstance(event.payload, RecoveryPayload):
            incidents = apply_recovery_event(incidents, event.payload, event.at)
    return incidents


def apply_recovery_event(incidents: Incidents, payload: RecoveryPayload, at: float) -> Incidents:
    others = {key: incident for key, incident in incidents.items() if key != payload.incident}
    incident_before = incidents.get(payload.incident) or Incident(payload.incident, payload.scenario, "enqueued")
    # Re-inserting at the end keeps the mapping in order of the last update.
    newest = list(others.items())[-(INCIDENTS_MAX - 1) :]
    return {**dict(newest), payload.incident: _apply_event(incident_before, payload, at)}


def plan_next_attempt(
    incident: Incident | None, recipe: RecoveryRecipe, rules: RecoveryRules, *, at: float, trigger: RecoveryTrigger
) -> NextAttempt | None:
    """The next attempt and its first step; None if the maximum number of attempts is reached.

    The limit prevents automatic loops, so a manual attempt resets the count and continues at the step that failed.
    """
    attempts, first_step = _effective_attempts(incident, recipe, rules, at)
    if trigger == "manual":
        return NextAttempt(1, first_step)
    if attempts >= recipe.attempts_max:
        return None
    return NextAttempt(attempts + 1, first_step, backoff_seconds(attempts + 1))


def _effective_attempts(
    incident: Incident | None, recipe: RecoveryRecipe, rules: RecoveryRules, at: float
) -> tuple[int, int]:
    if incident is None:
        return 0, 0
    if incident.has_recovered:
        return (0 if rules.success_resets else incident.attempts), 0
    last_update_at = incident.ended_at if incident.ended_at is not None else incident.started_at
    healthy = rules.healthy_seconds
    if healthy is not None and last_update_at is not None and at - last_update_at >= healthy:
        return 0, 0
    # A position in the list of steps means nothing if the recipe has changed since.
    is_same_recipe = incident.steps == tuple(step.name.value for step in recipe.steps)
    return incident.attempts, incident.first_step if is_same_recipe else 0


def _apply_event(incident: Incident, payload: RecoveryPayload, at: float) -> Incident:
    change = msgspec.structs.replace
    match payload:
        case RecoveryEnqueued(follow_up=follow_up, detail=detail):
            # Reporting an incident again does not reset its attempts.
            state: IncidentState = "exhausted" if incident.state == "exhausted" else "enqueued"
            return change(incident, state=state, follow_up=follow_up, detail=detail)
        case RecoveryAttempted() as attempted:
            return change(
                incident,
                state="running",
                attempts=attempted.attempt,
                attempts_max=attempted.attempts_max,
                steps=attempted.steps,
                first_step=attempted.first_step,
                has_recovered=False,
                results=(),
                trigger=attempted.trigger,
                started_at=at,
                ended_at=None,
            )
        case RecoverySucceeded(results=results):
            return change(incident, state="succeeded", results=results, first_step=0, has_recovered=True, ended_at=at)
        case RecoveryFailed(results=results, remaining=remaining, reason=reason):
            first = len(incident.steps) - len(remaining)
            return change(incident, state="failed", results=results, first_step=first, last_failure=reason, ended_at=at)
        case RecoveryEscalated(policy=policy, reason=reason, results=results):
            latest = results or incident.results
            return change(incident, state="exhausted", policy=policy, escalation=reason, results=latest, ended_at=at)
        case _:
            return incident
