"""The values that OpenAI's Responses format can encode."""

from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support import wire_values as values
from tests.support.wires import WireValues

from holdfast.providers.openai_responses.items import SUMMARY_SEPARATOR, make_signature
from holdfast.types.blocks import Block, Text, Thinking, ToolUse
from holdfast.types.reply import CacheDiagnosis, Reply, StopReason
from holdfast.types.usage import Usage


def sealed(summaries: list[str], encrypted_content: str, id: str | None) -> Thinking:
    return Thinking(SUMMARY_SEPARATOR.join(summaries), make_signature(encrypted_content, id, summaries))


sealed_thinkings = st.builds(
    sealed, st.lists(values.texts, max_size=3), st.text("gAB=", min_size=1, max_size=6), st.none() | values.ids
)
usages = st.builds(
    Usage,
    input=values.counts,
    cache_read=values.counts,
    cache_write_other=values.counts,
    output=values.counts,
)
reply_blocks = (
    st.builds(Text, values.texts)
    | values.tool_uses
    | sealed_thinkings
    | st.builds(Thinking, values.texts)
    | values.opaques
)


def _reply(
    content: list[Block],
    usage: Usage,
    stop_reason: StopReason | None,
    names: tuple[str, str],
    diagnosis: CacheDiagnosis | None,
) -> Reply:
    """The stop reason of a complete reply follows from its content."""
    natural: StopReason = "tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn"
    return Reply(tuple(content), stop_reason or natural, usage, *names, diagnosis=diagnosis)


replies = st.builds(
    _reply,
    st.lists(reply_blocks, max_size=4),
    usages,
    st.sampled_from([None, None, "max_tokens", "refusal"]),
    st.tuples(values.names, values.ids),
    st.none() | values.diagnoses.filter(lambda diagnosis: diagnosis.outcome != "pending"),
)
parameters = values.parameters.map(lambda parameters_of_any: replace(parameters_of_any, stop_sequences=(), betas=()))

VALUES = WireValues(parameters, replies, ("30m", "12h"))
