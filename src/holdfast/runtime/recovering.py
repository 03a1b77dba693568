"""Connects a session to the recovery recipes, with the step functions that the host passed."""

import asyncio
import difflib
from collections.abc import Iterable

from holdfast.engine.context_steps import ContextSteps
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovering import Recoverer, Steps
from holdfast.engine.repairing import ConversationLedger
from holdfast.errors import UserError
from holdfast.recovery.recipes import rules_of
from holdfast.recovery.scenarios import FailureScenario, StepName
from holdfast.runtime.options import Options


def recoverer_of(conversation: Conversation, steps: Steps, options: Options) -> Recoverer:
    """A recoverer that records its attempts as events of the session."""
    return Recoverer(
        ConversationLedger(conversation),
        {**ContextSteps(conversation).steps, **steps},
        clock=conversation.parts.clock,
        sleep=options.get("sleep", asyncio.sleep),
        rules=rules_of(conversation.state.profile),
    )


def steps_given(options: Options) -> Steps:
    """The host's functions by recovery step. Raises UserError for a name that is not a step of any recipe."""
    return {step_named(name): function for name, function in options.get("recovery_steps", {}).items()}


def scenario_named(name: str) -> FailureScenario:
    try:
        return FailureScenario(name)
    except ValueError:
        raise UserError(f"there is no scenario {name!r}; {_hint(name, FailureScenario)}") from None


def step_named(name: str) -> StepName:
    try:
        return StepName(name)
    except ValueError:
        raise UserError(f"there is no step {name!r}; {_hint(name, StepName)}") from None


def _hint(name: str, known: Iterable[str]) -> str:
    names = [str(choice) for choice in known]
    similar = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(names)}"
