"""Runs recovery recipes: each step by the host's function for it, with a time limit, counted and recorded."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.clock import Clock, Sleep
from holdfast.engine.state import SessionState
from holdfast.errors import AbortedError, UserError
from holdfast.events.log import Actor
from holdfast.events.payloads.recovery import (
    AnyRecoveryPayload,
    FollowUp,
    RecoveryAttempted,
    RecoveryEnqueued,
    RecoveryEscalated,
    RecoveryFailed,
    RecoverySucceeded,
    RecoveryTrigger,
    StepResult,
)
from holdfast.events.payloads.union import AnyPayload
from holdfast.providers.errors import sanitize_message
from holdfast.recovery.attempts import NextAttempt, plan_next_attempt
from holdfast.recovery.recipes import (
    DEFAULT_RULES,
    RECIPES,
    Recipes,
    RecoveryRecipe,
    RecoveryRules,
    RecoveryStep,
    choose_follow_up,
)
from holdfast.recovery.scenarios import EscalationPolicy, FailureScenario, StepName

logger = logging.getLogger(__name__)


class StepContext(msgspec.Struct, frozen=True):
    """The input of a step function: the step, its incident, what was reported, and whether it is the last step."""

    step: RecoveryStep
    scenario: FailureScenario
    incident: str
    detail: str = ""
    is_last: bool = False


class FixedByStep(msgspec.Struct, frozen=True):
    """Returned by a step that fixed the failure, so that the remaining steps are skipped."""

    detail: str = ""


StepOutcome = str | FixedByStep | None
StepFunction = Callable[[StepContext], Awaitable[StepOutcome] | StepOutcome]
"""Performs a step and may return what it did; raises if it could not. A plain function runs in a thread."""

StepFunctions = Mapping[StepName, StepFunction]
StepStatus = Literal["done", "recovered", "failed"]


class Recovered(msgspec.Struct, frozen=True):
    steps_taken: int


class PartialRecovery(msgspec.Struct, frozen=True):
    """The first of the remaining steps is the one that failed; the next attempt starts with it.

    `escalated`: there is no next attempt unless a person requests it.
    """

    done: tuple[StepName, ...]
    remaining: tuple[StepName, ...]
    reason: str
    escalated: bool = False


class EscalationRequired(msgspec.Struct, frozen=True):
    reason: str
    policy: EscalationPolicy


RecoveryOutcome = Recovered | PartialRecovery | EscalationRequired


class PlannedRecovery(msgspec.Struct, frozen=True):
    """What an attempt would do now. `missing` are steps for which the host has given no function."""

    scenario: FailureScenario
    incident: str
    allowed: bool
    attempt: int
    attempts_max: int
    steps: tuple[RecoveryStep, ...]
    missing: tuple[StepName, ...]
    pause_seconds: float
    escalation: EscalationPolicy


class IncidentReport(msgspec.Struct, frozen=True):
    """The follow-up of a reported failure, and its outcome if the follow-up was to run the recipe."""

    incident: str
    follow_up: FollowUp
    outcome: RecoveryOutcome | None = None


class ConversationLike(Protocol):
    """A state, and the only way to change it."""

    state: SessionState

    async def record(self, actor: Actor, *payloads: AnyPayload) -> None: ...


class RecoveryRunner:
    """Runs recipes, one at a time, never more often than they allow. Attempts are events of the conversation."""

    def __init__(
        self,
        conversation: ConversationLike,
        steps: StepFunctions,
        *,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        recipes: Recipes = RECIPES,
        rules: RecoveryRules = DEFAULT_RULES,
    ) -> None:
        self._conversation = conversation
        self._steps = steps
        self._clock = clock
        self._sleep = sleep
        self._recipes = recipes
        self._rules = rules
        self._lock = asyncio.Lock()

    async def report(self, scenario: FailureScenario, *, incident: str = "", detail: str = "") -> IncidentReport:
        """Report a known failure: its recipe is run, shown to a person, or ends the work with `AbortedError`."""
        recipe = self._recipe(scenario)
        key = incident or scenario.value
        follow_up = choose_follow_up(recipe)
        await self._record(RecoveryEnqueued(key, scenario.value, follow_up, sanitize_message(detail)))
        match follow_up:
            case "run":
                return IncidentReport(key, follow_up, await self.attempt(scenario, incident=key, detail=detail))
            case "surface":
                logger.warning("%s needs a person: `holdfast recovery list` shows the manual steps", key)
                return IncidentReport(key, follow_up)
            case "end":
                raise AbortedError(f"{key}: the work ends here; {sanitize_message(detail) or 'its recipe says so'}")

    def dry_run(
        self, scenario: FailureScenario, *, incident: str = "", trigger: RecoveryTrigger = "automatic"
    ) -> PlannedRecovery:
        """What `attempt` would do now; nothing is run or recorded."""
        recipe = self._recipe(scenario)
        key = incident or scenario.value
        planned = self._plan(recipe, key, trigger)
        steps = recipe.steps[planned.first_step :] if planned else ()
        return PlannedRecovery(
            scenario=scenario,
            incident=key,
            allowed=planned is not None,
            attempt=planned.number if planned else recipe.attempts_max,
            attempts_max=recipe.attempts_max,
            steps=steps,
            missing=self._missing_steps(steps),
            pause_seconds=planned.pause_seconds if planned else 0.0,
            escalation=recipe.escalation,
        )

    async def attempt(
        self, scenario: FailureScenario, *, incident: str = "", detail: str = "", trigger: RecoveryTrigger = "automatic"
    ) -> RecoveryOutcome:
        """Run the recipe from its first remaining step; the outcome is recorded in every case.

        If a step has no function, nothing is run and no attempt is used up: the incident waits for a host that has it.
        """
        async with self._lock:
            recipe = self._recipe(scenario)
            key = incident or scenario.value
            planned = self._plan(recipe, key, trigger)
            if planned is None:
                return await self._refuse(recipe, key, trigger)
            if missing := self._missing_steps(recipe.steps[planned.first_step :]):
                reason = f"no step named {missing[0].value!r} is registered"
                detail = f"{reason}; {sanitize_message(detail)}" if detail else reason
                await self._record(RecoveryEnqueued(key, scenario.value, choose_follow_up(recipe), detail))
                return EscalationRequired(reason, recipe.escalation)
            if planned.pause_seconds:
                await self._sleep(planned.pause_seconds)
            attempted = RecoveryAttempted(
                incident=key,
                scenario=scenario.value,
                attempt=planned.number,
                attempts_max=recipe.attempts_max,
                steps=tuple(step.name.value for step in recipe.steps),
                first_step=planned.first_step,
                trigger=trigger,
            )
            await self._record(attempted)
            return await self._follow(recipe, attempted, sanitize_message(detail))

    def _missing_steps(self, steps: Sequence[RecoveryStep]) -> tuple[StepName, ...]:
        """The steps without a function; escalating to a person needs none, because the person is the step."""
        known = {StepName.EscalateToHuman, *self._steps}
        return tuple(step.name for step in steps if step.name not in known)

    def _plan(self, recipe: RecoveryRecipe, key: str, trigger: RecoveryTrigger) -> NextAttempt | None:
        incident = self._conversation.state.incidents.get(key)
        return plan_next_attempt(incident, recipe, self._rules, at=self._clock(), trigger=trigger)

    async def _record(self, *payloads: AnyRecoveryPayload) -> None:
        await self._conversation.record("system", *payloads)

    async def _follow(self, recipe: RecoveryRecipe, attempted: RecoveryAttempted, detail: str) -> RecoveryOutcome:
        results: list[StepResult] = []
        for index in range(attempted.first_step, len(recipe.steps)):
            step, is_last = recipe.steps[index], index == len(recipe.steps) - 1
            context = StepContext(step, recipe.scenario, attempted.incident, detail, is_last)
            try:
                results.append(await self._perform(context))
            except asyncio.CancelledError:
                cancelled = StepResult(step.name.value, "failed", "cancelled")
                await self._record(self._failed(attempted, index, (*results, cancelled)))
                raise
            if results[-1].status == "failed":
                return await self._give_up(recipe, attempted, index, tuple(results))
            if results[-1].status == "recovered":
                break
        key, scenario, attempt = attempted.incident, attempted.scenario, attempted.attempt
        await self._record(RecoverySucceeded(key, scenario, attempt, tuple(results)))
        return Recovered(len(results))

    async def _perform(self, context: StepContext) -> StepResult:
        step, started_at = context.step, self._clock()
        function = self._steps.get(step.name)
        if function is None:
            reason = step.subject or "a person has to look at it"
            return StepResult(step.name.value, "failed", sanitize_message(reason))
        try:
            async with asyncio.timeout(step.seconds_max) as limit:
                answer = await _call_step(function, context)
        except TimeoutError as error:
            reason = f"it took longer than {step.seconds_max:g} s" if limit.expired() else str(error)
            return self._result(step, "failed", reason or "TimeoutError", started_at)
        except Exception as error:  # noqa: BLE001 - whatever a host's function raises, it is the step that failed.
            return self._result(step, "failed", str(error) or type(error).__name__, started_at)
        if isinstance(answer, FixedByStep):
            return self._result(step, "recovered", answer.detail, started_at)
        return self._result(step, "done", answer if isinstance(answer, str) else "", started_at)

    def _result(self, step: RecoveryStep, status: StepStatus, detail: str, started_at: float) -> StepResult:
        return StepResult(step.name.value, status, sanitize_message(detail), max(0.0, self._clock() - started_at))

    async def _give_up(
        self, recipe: RecoveryRecipe, attempted: RecoveryAttempted, index: int, results: tuple[StepResult, ...]
    ) -> RecoveryOutcome:
        failed = self._failed(attempted, index, results)
        is_exhausted = attempted.attempt >= recipe.attempts_max or recipe.steps[index].name is StepName.EscalateToHuman
        at_once = self._rules.escalates_at_once
        reason = f"{failed.reason}{' (failed at first step)' if index == 0 else ''}"
        escalated = RecoveryEscalated(attempted.incident, attempted.scenario, recipe.escalation.value, reason, results)
        escalates = is_exhausted if at_once else index == 0
        await self._record(*((failed,) if at_once or not escalates else ()), *((escalated,) if escalates else ()))
        if escalates and recipe.escalation is EscalationPolicy.LogAndContinue:
            # The other policies show the failure to a person or raise it.
            logger.warning("%s is not recovered, and the work continues: %s", attempted.incident, reason)
        if escalates and index == 0:
            return EscalationRequired(reason, recipe.escalation)
        names = tuple(step.name for step in recipe.steps)
        return PartialRecovery(names[:index], names[index:], failed.reason, escalates)

    def _failed(self, attempted: RecoveryAttempted, index: int, results: tuple[StepResult, ...]) -> RecoveryFailed:
        scenario, last = attempted.scenario, results[-1]
        reason = f"{scenario}: step {last.step!r} failed: {last.detail}"
        return RecoveryFailed(attempted.incident, scenario, attempted.attempt, results, attempted.steps[index:], reason)

    async def _refuse(self, recipe: RecoveryRecipe, key: str, trigger: RecoveryTrigger) -> EscalationRequired:
        scenario, limit = recipe.scenario.value, recipe.attempts_max
        reason = f"max recovery attempts ({limit}) exceeded for {scenario}"
        escalated = RecoveryEscalated(key, scenario, recipe.escalation.value, reason)
        incident = self._conversation.state.incidents[key]
        steps, first_step = incident.steps, incident.first_step
        attempted = RecoveryAttempted(key, scenario, incident.attempts, limit, steps, first_step, trigger)
        await self._record(*(() if self._rules.escalates_at_once else (attempted,)), escalated)
        return EscalationRequired(reason, recipe.escalation)

    def _recipe(self, scenario: FailureScenario) -> RecoveryRecipe:
        recipe = self._recipes.get(scenario)
        if recipe is None:
            known = ", ".join(scenario.value for scenario in self._recipes)
            raise UserError(f"no recipe for {scenario.value!r}; known scenarios: {known}")
        return recipe


async def _call_step(function: StepFunction, context: StepContext) -> StepOutcome:
    result = function(context) if inspect.iscoroutinefunction(function) else await asyncio.to_thread(function, context)
    return await result if inspect.isawaitable(result) else result
