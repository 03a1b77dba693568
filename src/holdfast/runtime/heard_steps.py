"""Collects an agent's steps from the events of its session, and attaches them to the audit records of its recalls."""

from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.events.envelope import Event
from holdfast.events.payloads import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.instructions.trace import Step, Trace, from_token, shortened, steps_of, tokens_in


class HeardSteps:
    """The steps of one session, in order; steps of sessions it delegates to are not included."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._session_id: str | None = None
        self._tools: dict[str, str] = {}

    def hear(self, event: Event) -> None:
        self._session_id = self._session_id or event.session_id
        if isinstance(event.payload, MessageAppended) and event.session_id == self._session_id:
            self.steps.extend(steps_of([event.payload.message], self._tools))


class TurnTraces:
    """When a turn ends, submits for each recall in it the steps that followed the recall."""

    def __init__(self, submit_trace: Callable[[str, Trace], None]) -> None:
        self._submit = submit_trace
        self._steps_by_session: dict[str, HeardSteps] = {}

    def hear(self, event: Event) -> None:
        self._steps_by_session.setdefault(event.session_id, HeardSteps()).hear(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled):
            steps = self._steps_by_session.pop(event.session_id).steps
            for token in tokens_in(steps):
                submit_quietly(self._submit, token, from_token(steps, token))


def submit_quietly(submit: Callable[[str, Trace], None], token: str, trace: Trace) -> None:
    """Submit the trace, ignoring errors: the audit record is best effort and must not fail a turn that succeeded."""
    try:
        submit(token, shortened(trace))
    except HoldfastError:
        return
