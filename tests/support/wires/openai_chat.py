"""The values that OpenAI's Chat Completions format can encode; also used for its variants."""

from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import WireValues

from holdfast.types.blocks import Block, Opaque, Text, ToolUse
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters
from holdfast.types.reply import Reply, StopReason
from holdfast.types.usage import Usage

choices = st.sampled_from(
    [
        '{"type":"auto"}',
        '{"type":"any"}',
        '{"type":"none"}',
        '{"type":"tool","name":"gr\\"ep"}',
        '{"type":"any","disable_parallel_tool_use":true}',
        '{"type":"tool","name":"grep","disable_parallel_tool_use":true}',
    ]
)


def parameters_with(thinking_json: st.SearchStrategy[str]) -> st.SearchStrategy[Parameters]:
    return st.builds(
        Parameters,
        model=values.names,
        output_tokens_max=st.integers(0, 100_000),
        stream=st.booleans(),
        stop_sequences=st.lists(values.texts, max_size=2).map(tuple),
        temperature=st.none() | st.floats(0, 1),
        tool_choice_json=st.none() | choices,
        thinking_json=st.none() | thinking_json,
        extra=st.dictionaries(values.names.map("x_".__add__), values.json_values, max_size=2).map(
            lambda extra: tuple((name, encode_json(value).decode()) for name, value in extra.items())
        ),
    )


custom_calls = st.builds(
    lambda id, name, text: Opaque(
        "tool_calls.custom", encode_json({"id": id, "type": "custom", "custom": {"name": name, "input": text}})
    ),
    values.ids,
    values.names,
    values.texts,
)


@st.composite
def replies_with(
    draw: st.DrawFn, thought: st.SearchStrategy[tuple[Block, ...]], usages: st.SearchStrategy[Usage]
) -> Reply:
    """Blocks in the order in which a message is encoded; `end_turn` occurs only without tool calls."""
    reasoning = draw(thought)
    text = draw(st.lists(st.builds(Text, st.text(min_size=1, max_size=80)), max_size=1))
    calls = draw(st.lists(values.tool_uses | custom_calls, max_size=3))
    ends: list[StopReason] = ["max_tokens", "refusal", "tool_use"]
    if not any(isinstance(call, ToolUse) for call in calls):
        ends.append("end_turn")
    return Reply(
        (*reasoning, *text, *calls),
        draw(st.sampled_from(ends)),
        draw(usages),
        model=draw(values.names),
        id=draw(values.ids),
    )


usages = st.builds(
    Usage, input=values.counts, cache_read=values.counts, cache_write_other=values.counts, output=values.counts
)

VALUES = WireValues(
    parameters_with(st.sampled_from(['{"effort":"low"}', '{"effort":"none"}'])),
    replies_with(st.just(()), usages),
    ("30m", "12h"),
)
