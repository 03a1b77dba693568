"""Connects a session to an agent's instructions: tools that recall them, usage reports and traces, and shadow mode."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast.engine.tools.definition import Tool, ToolError, tool
from holdfast.errors import HoldfastError
from holdfast.events.log import Event, EventListener
from holdfast.events.payloads.session import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.instructions.recall.answer import RecallAnswer, render_recall
from holdfast.instructions.recall.boot_stub import RECALL_TOOL_INPUT, RECALL_TOOL_SCHEMA
from holdfast.instructions.usage.trace import (
    StepCollector,
    Trace,
    find_audit_tokens,
    trace_from_token,
    truncate_trace,
)
from holdfast.runtime.options import SessionInstructions
from holdfast.types.blocks import Json, Text

Recall = Callable[..., RecallAnswer]
SubmitUsage = Callable[..., None]
SubmitTrace = Callable[[str, Trace], None]
UNIT_NAMES_SCHEMA: dict[str, Json] = {"type": "array", "items": {"type": "string"}}

# A recall is bounded by its token budget. This limit is far above any budget, so that no result is cut by characters.
RECALL_CHARACTERS_MAX = 1_000_000


def instruction_tools(recall: Recall, submit_usage: SubmitUsage) -> tuple[Tool, ...]:
    """Both tools only read instructions and report on them, so they run without confirmation."""

    def recall_instruction(
        intent: str, max_chunks: int | None = None, token_budget: int | None = None, manifest_hint: Sequence[str] = ()
    ) -> str:
        try:
            recalled = recall(intent, max_chunks=max_chunks, token_budget=token_budget, manifest_hint=manifest_hint)
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return render_recall(recalled)

    def report_usage(audit_token: str, used_chunks: Sequence[str] = (), missed_chunks: Sequence[str] = ()) -> str:
        try:
            submit_usage(audit_token, used=used_chunks, missed=missed_chunks)
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return "on record"

    names = {"used_chunks": UNIT_NAMES_SCHEMA, "missed_chunks": UNIT_NAMES_SCHEMA}
    properties: Json = {"audit_token": {"type": "string"}, **names}
    usage_schema: dict[str, Json] = {"type": "object", "properties": properties, "required": ["audit_token"]}
    tools = (
        tool(
            recall_instruction,
            description=str(RECALL_TOOL_SCHEMA["description"]),
            input_schema=RECALL_TOOL_INPUT,
            side_effects="read",
        ),
        tool(
            report_usage,
            name="submit_usage",
            description="Say which units of a recall you applied, and which you needed but did not get.",
            input_schema=usage_schema,
            side_effects="read",
        ),
    )
    settings = {"needs_confirmation": False, "output_characters_max": RECALL_CHARACTERS_MAX}
    return tuple(msgspec.structs.replace(instruction_tool, **settings) for instruction_tool in tools)


def make_trace_submitter(submit: SubmitTrace) -> EventListener:
    """A listener that submits, when a turn ends, the steps that followed each recall in it."""
    steps_by_session: dict[str, StepCollector] = {}

    def on_event(event: Event) -> None:
        steps_by_session.setdefault(event.session_id, StepCollector()).on_event(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled):
            steps = steps_by_session.pop(event.session_id).steps
            for token in find_audit_tokens(steps):
                submit_best_effort(submit, token, trace_from_token(steps, token))

    return on_event


def submit_best_effort(submit: SubmitTrace, token: str, trace: Trace) -> None:
    """Submit the trace, ignoring errors: the audit record is best effort and must not fail a turn that succeeded."""
    with suppress(HoldfastError):
        submit(token, truncate_trace(trace))


def shadow_instructions(
    text: str, recall: Recall, submit_usage: SubmitUsage, submit_trace: SubmitTrace
) -> SessionInstructions:
    """Instructions in shadow mode, for a single session: `submit_usage` always refers to its latest message."""
    shadow = _Shadow(recall, submit_usage, submit_trace)
    usage = tool(
        shadow.report,
        name="submit_usage",
        description="Say which of the sections of your instructions you applied in answering.",
        input_schema={"type": "object", "properties": {"used_chunks": UNIT_NAMES_SCHEMA}, "required": ["used_chunks"]},
        side_effects="read",
    )
    return SessionInstructions(text, (msgspec.structs.replace(usage, needs_confirmation=False),), shadow.on_event)


class _Shadow:
    def __init__(self, recall: Recall, submit_usage: SubmitUsage, submit_trace: SubmitTrace) -> None:
        self._recall = recall
        self._submit = submit_usage
        self._submit_trace = submit_trace
        self._steps = StepCollector()
        self._session_id: str | None = None
        self._token: str | None = None

    def on_event(self, event: Event) -> None:
        self._session_id = self._session_id or event.session_id
        if event.session_id != self._session_id:
            # A session that this one delegates to is not a turn of this one.
            return
        self._steps.on_event(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled) and self._token is not None:
            submit_best_effort(self._submit_trace, self._token, tuple(self._steps.steps))
            self._steps.steps.clear()
        if not isinstance(event.payload, MessageAppended) or event.actor != "user":
            return
        text = "\n".join(block.text for block in event.payload.message.content if isinstance(block, Text))
        if text.strip():
            self._token = self._recall(text, heartbeat_id=event.session_id, shadow=True).audit_token or None

    def report(self, used_chunks: Sequence[str]) -> str:
        if self._token is None:
            raise ToolError("there is no message yet for which a unit could have been used")
        try:
            self._submit(self._token, used=tuple(used_chunks))
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return "on record"
