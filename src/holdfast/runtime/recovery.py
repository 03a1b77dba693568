"""`session.recovery`: reports known failures of a session and runs their recipes with the host's step functions."""

import asyncio
import difflib
from collections.abc import Callable, Iterable

from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.context_steps import context_recovery_steps
from holdfast.engine.recovery.runner import (
    IncidentReport,
    PlannedRecovery,
    RecoveryOutcome,
    RecoveryRunner,
    StepFunctions,
)
from holdfast.engine.state import SessionState
from holdfast.errors import AbortedError, UserError
from holdfast.events.payloads.recovery import RecoveryTrigger
from holdfast.recovery.attempts import Incident
from holdfast.recovery.recipes import select_rules
from holdfast.recovery.scenarios import FailureScenario, StepName
from holdfast.runtime.options import Options


class SessionRecovery:
    """The recovery of one session. A scenario is the name of a `FailureScenario`; other names raise UserError."""

    def __init__(
        self,
        open_runner: Callable[[], RecoveryRunner],
        current_state: Callable[[], SessionState],
        cancel_turn: Callable[[], None],
    ) -> None:
        self._open_runner = open_runner
        self._current_state = current_state
        self._cancel_turn = cancel_turn

    async def report(self, scenario: str, *, incident: str = "", detail: str = "") -> IncidentReport:
        """Report a known failure: its recovery recipe runs, waits for a person, or aborts the work.

        An abort cancels the turn in progress and raises `AbortedError`.
        """
        try:
            return await self._open_runner().report(find_scenario(scenario), incident=incident, detail=detail)
        except AbortedError:
            self._cancel_turn()
            raise

    async def run(
        self, scenario: str, *, incident: str = "", detail: str = "", trigger: RecoveryTrigger = "automatic"
    ) -> RecoveryOutcome:
        """Run the recipe of a known failure from its first open step, unless its attempts are used up."""
        failure = find_scenario(scenario)
        return await self._open_runner().attempt(failure, incident=incident, detail=detail, trigger=trigger)

    def plan(self, scenario: str, *, incident: str = "", trigger: RecoveryTrigger = "automatic") -> PlannedRecovery:
        """What `run` would do now; a dry run."""
        return self._open_runner().dry_run(find_scenario(scenario), incident=incident, trigger=trigger)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The failures reported in this session, with their recovery attempts."""
        return tuple(self._current_state().incidents.values())


def recovery_runner(conversation: Conversation, steps: StepFunctions, options: Options) -> RecoveryRunner:
    """A runner that records its attempts as events of the session."""
    return RecoveryRunner(
        conversation,
        {**context_recovery_steps(conversation), **steps},
        clock=conversation.deps.clock,
        sleep=options.get("sleep", asyncio.sleep),
        rules=select_rules(conversation.state.profile),
    )


def host_steps(options: Options) -> StepFunctions:
    """The host's functions by recovery step. Raises UserError for a name that is not a step of any recipe."""
    return {find_step(name): function for name, function in options.get("recovery_steps", {}).items()}


def find_scenario(name: str) -> FailureScenario:
    try:
        return FailureScenario(name)
    except ValueError:
        raise UserError(f"there is no scenario {name!r}; {_hint(name, FailureScenario)}") from None


def find_step(name: str) -> StepName:
    try:
        return StepName(name)
    except ValueError:
        raise UserError(f"there is no step {name!r}; {_hint(name, StepName)}") from None


def _hint(name: str, known: Iterable[str]) -> str:
    names = [str(choice) for choice in known]
    similar = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(names)}"
