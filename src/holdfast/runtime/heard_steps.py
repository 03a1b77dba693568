"""What an agent did, as a listener hears it from the events of its session; and what its recalls are shown of it."""

import re
from collections.abc import Callable, Iterable

from holdfast.errors import HoldfastError
from holdfast.events.envelope import Event
from holdfast.events.payloads import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.instructions.trace import Shown, Step, Trace, from_token, is_of_instructions, shortened, steps_of

_TOKEN = re.compile(r"\baudi_\w{1,100}")


class HeardSteps:
    """The steps of one session, in order; those of sessions that work for it are none of its own."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._session_id: str | None = None
        self._tools: dict[str, str] = {}

    def hear(self, event: Event) -> None:
        self._session_id = self._session_id or event.session_id
        if isinstance(event.payload, MessageAppended) and event.session_id == self._session_id:
            self.steps.extend(steps_of([event.payload.message], self._tools))


class TurnTraces:
    """When a turn ends, what was done in it after each of its recalls is shown to the record of that recall."""

    def __init__(self, submit_trace: Callable[[str, Trace], None]) -> None:
        self._submit = submit_trace
        self._heard: dict[str, HeardSteps] = {}

    def hear(self, event: Event) -> None:
        self._heard.setdefault(event.session_id, HeardSteps()).hear(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled):
            steps = self._heard.pop(event.session_id).steps
            for token in tokens_in(steps):
                submit_quietly(self._submit, token, from_token(steps, token))


def submit_quietly(submit: Callable[[str, Trace], None], token: str, trace: Trace) -> None:
    """The record is best effort: a turn that went well does not fail for it."""
    try:
        submit(token, shortened(trace))
    except HoldfastError:
        return


def tokens_in(steps: Iterable[Step]) -> tuple[str, ...]:
    """The tokens of the recalls that a tool answered, oldest first."""
    told = (step.text for step in steps if isinstance(step, Shown) and is_of_instructions(step.tool))
    # The token is the last word of an answer; what stands before it is the text of units.
    found = (_TOKEN.findall(text)[-1:] for text in told)
    return tuple(dict.fromkeys(token for some in found for token in some))
