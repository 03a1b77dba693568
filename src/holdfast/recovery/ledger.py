"""What was tried about each incident and what came of it, as a fold over events; and whether it may be tried again."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from holdfast.events.envelope import Event
from holdfast.events.payloads_recovery import (
    FollowUp,
    Recovery,
    RecoveryAttempted,
    RecoveryEnqueued,
    RecoveryEscalated,
    RecoveryFailed,
    RecoverySucceeded,
    StepResult,
    Trigger,
)
from holdfast.recovery.recipes import RecoveryRecipe, RecoveryRules, backoff_seconds

INCIDENTS_MAX = 1_000
"""How many are remembered; the ones that were heard of longest ago are forgotten first."""

IncidentState = Literal["enqueued", "running", "succeeded", "failed", "exhausted"]


class Incident(msgspec.Struct, frozen=True):
    """One failure under one key. `attempts` are those since the count last began; `steps` are those of the recipe.

    Steps in front of `first_step` need not be done again. `recovered` says that the last attempt was a success.
    """

    key: str
    scenario: str
    state: IncidentState
    attempts: int = 0
    attempts_max: int | None = None
    steps: tuple[str, ...] = ()
    first_step: int = 0
    recovered: bool = False
    results: tuple[StepResult, ...] = ()
    trigger: Trigger | None = None
    follow_up: FollowUp | None = None
    detail: str = ""
    last_failure: str = ""
    escalation: str = ""
    policy: str = ""
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def attempts_left(self) -> int | None:
        return None if self.attempts_max is None else max(0, self.attempts_max - self.attempts)

    @property
    def remaining(self) -> tuple[str, ...]:
        return () if self.state == "succeeded" else self.steps[self.first_step :]


class Ledger(msgspec.Struct, frozen=True):
    incidents: Mapping[str, Incident] = {}


NOTHING_HAPPENED = Ledger()


class NextAttempt(msgspec.Struct, frozen=True):
    number: int
    first_step: int
    pause_seconds: float = 0.0


def ledger_of(events: Iterable[Event]) -> Ledger:
    ledger = NOTHING_HAPPENED
    for event in events:
        if isinstance(event.payload, Recovery):
            ledger = recorded(ledger, event.payload, event.at)
    return ledger


def recorded(ledger: Ledger, payload: Recovery, at: float) -> Ledger:
    """The ledger after one more event."""
    others = {key: incident for key, incident in ledger.incidents.items() if key != payload.incident}
    known = ledger.incidents.get(payload.incident) or Incident(payload.incident, payload.scenario, "enqueued")
    newest = list(others.items())[-(INCIDENTS_MAX - 1) :]
    return Ledger({**dict(newest), payload.incident: _after(known, payload, at)})


def next_attempt(
    incident: Incident | None, recipe: RecoveryRecipe, rules: RecoveryRules, *, at: float, trigger: Trigger
) -> NextAttempt | None:
    """Which attempt comes next, and with which step it starts; None where there were as many as are allowed.

    A person is no loop: who asks for it by hand starts the count anew, and goes on where it stopped.
    """
    attempts, first_step = _counted(incident, recipe, rules, at)
    if trigger == "manual":
        return NextAttempt(1, first_step)
    if attempts >= recipe.attempts_max:
        return None
    return NextAttempt(attempts + 1, first_step, backoff_seconds(attempts + 1))


def _counted(incident: Incident | None, recipe: RecoveryRecipe, rules: RecoveryRules, at: float) -> tuple[int, int]:
    if incident is None:
        return 0, 0
    if incident.recovered:
        return (0 if rules.success_resets else incident.attempts), 0
    heard_at = incident.ended_at if incident.ended_at is not None else incident.started_at
    if rules.healthy_seconds is not None and heard_at is not None and at - heard_at >= rules.healthy_seconds:
        return 0, 0
    same = incident.steps == tuple(step.name.value for step in recipe.steps)
    return incident.attempts, incident.first_step if same else 0


def _after(known: Incident, payload: Recovery, at: float) -> Incident:
    change = msgspec.structs.replace
    match payload:
        case RecoveryEnqueued(follow_up=follow_up, detail=detail):
            # What was reported again is not forgotten for it: attempts are counted by the incident.
            state: IncidentState = "exhausted" if known.state == "exhausted" else "enqueued"
            return change(known, state=state, follow_up=follow_up, detail=detail)
        case RecoveryAttempted() as it:
            return change(
                known,
                state="running",
                attempts=it.attempt,
                attempts_max=it.attempts_max,
                steps=it.steps,
                first_step=it.first_step,
                recovered=False,
                results=(),
                trigger=it.trigger,
                started_at=at,
                ended_at=None,
            )
        case RecoverySucceeded(results=results):
            return change(known, state="succeeded", results=results, first_step=0, recovered=True, ended_at=at)
        case RecoveryFailed(results=results, remaining=remaining, reason=reason):
            first = len(known.steps) - len(remaining)
            return change(known, state="failed", results=results, first_step=first, last_failure=reason, ended_at=at)
        case RecoveryEscalated(policy=policy, reason=reason, results=results):
            return change(
                known,
                state="exhausted",
                policy=policy,
                escalation=reason,
                results=results or known.results,
                ended_at=at,
            )
        case _:
            return known
