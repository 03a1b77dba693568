"""The tools with which a session recalls an agent's instructions and reports which ones it used."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.engine.tools import Tool, ToolError, tool
from holdfast.errors import HoldfastError
from holdfast.instructions.asking import Answered
from holdfast.instructions.stub import RECALL_TOOL_INPUT, RECALL_TOOL_SCHEMA
from holdfast.instructions.told import recalled_text

NAMES: dict[str, Json] = {"type": "array", "items": {"type": "string"}}
# A recall is bounded by its token budget. This limit is far above any budget, so that no result is cut by characters.
CONTENT_CHARACTERS_MAX = 1_000_000


def instruction_tools(recall: Callable[..., Answered], submit_usage: Callable[..., None]) -> tuple[Tool, ...]:
    """Both tools only read instructions and report on them, so they run without confirmation."""

    def recall_instruction(
        intent: str, max_chunks: int | None = None, token_budget: int | None = None, manifest_hint: Sequence[str] = ()
    ) -> str:
        try:
            recalled = recall(intent, max_chunks=max_chunks, token_budget=token_budget, manifest_hint=manifest_hint)
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return recalled_text(recalled)

    def report_usage(audit_token: str, used_chunks: Sequence[str] = (), missed_chunks: Sequence[str] = ()) -> str:
        try:
            submit_usage(audit_token, used=used_chunks, missed=missed_chunks)
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return "on record"

    usage_schema: dict[str, Json] = {
        "type": "object",
        "properties": {"audit_token": {"type": "string"}, "used_chunks": NAMES, "missed_chunks": NAMES},
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
        msgspec.structs.replace(instruction_tool, asks=False, output_characters_max=CONTENT_CHARACTERS_MAX)
        for instruction_tool in tools
    )
