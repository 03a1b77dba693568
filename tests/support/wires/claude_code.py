"""The values that the Claude Code command takes and prints."""

from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import WireValues

from holdfast.types.blocks import Text
from holdfast.types.prompt import Parameters
from holdfast.types.reply import Reply, StopReason

parameters = st.builds(Parameters, model=values.names, output_tokens_max=st.integers(0, 100_000), stream=st.booleans())
stop_reasons: st.SearchStrategy[StopReason] = st.sampled_from(["end_turn", "max_tokens", "stop_sequence", "refusal"])
replies = st.builds(
    Reply,
    content=st.just(()) | values.texts.filter(bool).map(lambda text: (Text(text),)),
    stop_reason=stop_reasons,
    usage=values.usages,
    model=values.names,
    id=values.ids,
)

VALUES = WireValues(parameters, replies)
