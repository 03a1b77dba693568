"""Whether a session of the seed's profile still works behind a compaction: a harmless tool is called before a turn."""

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
"""Tools that change nothing, and what they are called with; the first that a session has is the one."""


async def probe(conversation: Conversation) -> None:
    """Raises where the tool fails, and then nothing was said yet; a session without messages or such a tool passes."""
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
            f"the health probe {call.name!r} failed behind a compaction: {one_line(result_text(result))}; "
            "nothing was sent: mend the tool, or go on in a new session"
        )
