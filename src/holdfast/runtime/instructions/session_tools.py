"""The tools with which a session recalls an agent's instructions and reports which ones it used."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.engine.tools.definition import Tool, ToolError, tool
from holdfast.errors import HoldfastError
from holdfast.events.log import Event
from holdfast.events.payloads.session import TurnCancelled, TurnCompleted
from holdfast.instructions.recall.answer import RecallAnswer, render_recall
from holdfast.instructions.recall.boot_stub import RECALL_TOOL_INPUT, RECALL_TOOL_SCHEMA
from holdfast.instructions.usage.trace import (
    StepCollector,
    Trace,
    find_audit_tokens,
    trace_from_token,
    truncate_trace,
)
from holdfast.types.blocks import Json

UNIT_NAMES_SCHEMA: dict[str, Json] = {"type": "array", "items": {"type": "string"}}


# A recall is bounded by its token budget. This limit is far above any budget, so that no result is cut by characters.
RECALL_CHARACTERS_MAX = 1_000_000


def instruction_tools(recall: Callable[..., RecallAnswer], submit_usage: Callable[..., None]) -> tuple[Tool, ...]:
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

    usage_schema: dict[str, Json] = {
        "type": "object",
        "properties": {
            "audit_token": {"type": "string"},
            "used_chunks": UNIT_NAMES_SCHEMA,
            "missed_chunks": UNIT_NAMES_SCHEMA,
        },
        "required": ["audit_token"],
    }
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
    return tuple(
        msgspec.structs.replace(instruction_tool, needs_confirmation=False, output_characters_max=RECALL_CHARACTERS_MAX)
        for instruction_tool in tools
    )


class TurnTraceSubmitter:
    """When a turn ends, submits for each recall in it the steps that followed the recall."""

    def __init__(self, submit_trace: Callable[[str, Trace], None]) -> None:
        self._submit = submit_trace
        self._steps_by_session: dict[str, StepCollector] = {}

    def on_event(self, event: Event) -> None:
        self._steps_by_session.setdefault(event.session_id, StepCollector()).on_event(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled):
            steps = self._steps_by_session.pop(event.session_id).steps
            for token in find_audit_tokens(steps):
                submit_best_effort(self._submit, token, trace_from_token(steps, token))


def submit_best_effort(submit: Callable[[str, Trace], None], token: str, trace: Trace) -> None:
    """Submit the trace, ignoring errors: the audit record is best effort and must not fail a turn that succeeded."""
    try:
        submit(token, truncate_trace(trace))
    except HoldfastError:
        return
