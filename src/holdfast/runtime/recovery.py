"""Connects a session to the recovery recipes, with the step functions that the host passed."""

import asyncio
import difflib
from collections.abc import Iterable

from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.context_steps import ContextRecoverySteps
from holdfast.engine.recovery.runner import RecoveryRunner, StepFunctions
from holdfast.engine.recovery.transcript_repair import ConversationAttempts
from holdfast.errors import UserError
from holdfast.recovery.recipes import select_rules
from holdfast.recovery.scenarios import FailureScenario, StepName
from holdfast.runtime.options import Options


def session_recoverer(conversation: Conversation, steps: StepFunctions, options: Options) -> RecoveryRunner:
    """A recoverer that records its attempts as events of the session."""
    return RecoveryRunner(
        ConversationAttempts(conversation),
        {**ContextRecoverySteps(conversation).steps, **steps},
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
