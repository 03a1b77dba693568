"""How a host reports what went wrong and has it mended: the steps it gave, checked by name."""

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


def recoverer_of(talk: Conversation, steps: Steps, options: Options) -> Recoverer:
    """What follows recipes for a session; its attempts are events of the session."""
    return Recoverer(
        ConversationLedger(talk),
        {**ContextSteps(talk).steps, **steps},
        clock=talk.parts.clock,
        sleep=options.get("sleep", asyncio.sleep),
        rules=rules_of(talk.state.profile),
    )


def steps_given(options: Options) -> Steps:
    """The functions by the steps that they do; a name that no recipe has is refused."""
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
    names = [str(one) for one in known]
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
