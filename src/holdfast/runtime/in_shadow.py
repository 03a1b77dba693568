"""Shadow mode: a session gets all its instructions, and what would be recalled for each message is only recorded."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Text
from holdfast.engine.tools import ToolError, tool
from holdfast.errors import HoldfastError
from holdfast.events.envelope import Event
from holdfast.events.payloads import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.instructions.asking import Answered
from holdfast.instructions.trace import Trace
from holdfast.runtime.heard_steps import HeardSteps, submit_quietly
from holdfast.runtime.instructed import Instructed
from holdfast.runtime.instruction_tools import NAMES


def in_shadow(
    text: str,
    recall: Callable[..., Answered],
    submit_usage: Callable[..., None],
    submit_trace: Callable[[str, Trace], None],
) -> Instructed:
    """Instructions in shadow mode, for a single session: `submit_usage` always refers to its latest message."""
    shadow = _Shadow(recall, submit_usage, submit_trace)
    usage = tool(
        shadow.report,
        name="submit_usage",
        description="Say which of the sections of your instructions you applied in answering.",
        input_schema={"type": "object", "properties": {"used_chunks": NAMES}, "required": ["used_chunks"]},
        side_effects="read",
    )
    return Instructed(text, (msgspec.structs.replace(usage, asks=False),), shadow.hear)


class _Shadow:
    def __init__(
        self,
        recall: Callable[..., Answered],
        submit_usage: Callable[..., None],
        submit_trace: Callable[[str, Trace], None],
    ) -> None:
        self._recall = recall
        self._submit = submit_usage
        self._submit_trace = submit_trace
        self._steps = HeardSteps()
        self._session_id: str | None = None
        self._token: str | None = None

    def hear(self, event: Event) -> None:
        self._session_id = self._session_id or event.session_id
        if event.session_id != self._session_id:
            # A session that this one delegates to is not a turn of this one.
            return
        self._steps.hear(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled) and self._token is not None:
            submit_quietly(self._submit_trace, self._token, tuple(self._steps.steps))
            self._steps.steps.clear()
        if not isinstance(event.payload, MessageAppended) or event.actor != "user":
            return
        text = "\n".join(block.text for block in event.payload.message.content if isinstance(block, Text))
        if text.strip():
            self._token = self._recall(text, heartbeat_id=event.session_id, shadow=True).audit_token

    def report(self, used_chunks: Sequence[str]) -> str:
        if self._token is None:
            raise ToolError("there is no message yet for which a unit could have been used")
        try:
            self._submit(self._token, used=tuple(used_chunks))
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return "on record"
