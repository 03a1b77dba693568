"""The health probe of seed 002: after a compaction, a read-only tool is called before the turn."""

from holdfast.canonical.blocks import ToolUse
from holdfast.compaction.groups import records_in_front
from holdfast.engine.conversation import Conversation
from holdfast.errors import UserError
from holdfast.events.payloads import AnyPayload
from holdfast.extraction.calls import failed, result_text
from holdfast.providers.failures import one_line

PROBES = (
    ("glob_search", '{"pattern":"*.health-check-probe-"}'),
    ("list_dir", '{"path":"."}'),
)
"""Read-only tools with their arguments; the first one that the session has is used."""


async def probe(conversation: Conversation) -> None:
    """Raise `UserError` if the probe fails, before anything is recorded; without messages or a probe tool it passes."""
    state = conversation.state
    compacted = state.profile == "seed" and state.compaction.count
    if not compacted or records_in_front(state.passages) == len(state.passages):
        return
    tool_names = {spec.name for spec in conversation.parts.toolbox.specs}
    probe_call = next(((name, arguments) for name, arguments in PROBES if name in tool_names), None)
    if probe_call is None:
        return

    async def record(payload: AnyPayload) -> None:
        await conversation.record("tool", payload)

    call = ToolUse(conversation.parts.new_id(conversation.parts.clock()), *probe_call)
    (result,) = await conversation.parts.toolbox.run((call,), record, active=state.activations)
    if failed(result):
        raise UserError(
            f"the health probe {call.name!r} failed after a compaction: {one_line(result_text(result))}; "
            "nothing was sent: fix the tool, or continue in a new session"
        )
