"""What an agent did, as a listener hears it from the events of its session; and what its recalls are shown of it."""

from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.events.envelope import Event
from holdfast.events.payloads import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.instructions.trace import Step, Trace, from_token, shortened, steps_of, tokens_in


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
