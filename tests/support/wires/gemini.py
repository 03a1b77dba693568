"""The values that Gemini's format can encode: no betas, breakpoints, named stop sequence or cache writes."""

import base64
from collections.abc import Sequence

from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import WireValues

from holdfast.types.blocks import Base64Source, Block, Image, Text, Thinking, ToolUse
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters
from holdfast.types.reply import Reply, StopReason
from holdfast.types.usage import Usage

tool_choices = st.sampled_from(
    ['{"type":"auto"}', '{"type":"any"}', '{"type":"none"}', '{"type":"tool","name":"read"}']
)


def _extra(names: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    return st.dictionaries(names, values.json_values, max_size=2).map(
        lambda extra: tuple((name, encode_json(value).decode()) for name, value in extra.items())
    )


parameters = st.builds(
    Parameters,
    model=values.names,
    output_tokens_max=st.integers(0, 100_000),
    stream=st.booleans(),
    stop_sequences=st.lists(values.texts, max_size=2).map(tuple),
    temperature=st.none() | st.floats(0, 1),
    tool_choice_json=st.none() | tool_choices,
    thinking_json=st.none() | st.just('{"thinkingBudget": 1024, "includeThoughts":true}'),
    extra=st.builds(
        lambda inner, outer: inner + outer,
        _extra(values.names.map("generationConfig.x_".__add__)),
        _extra(values.names.map("x_".__add__)),
    ),
)

signatures = st.binary(min_size=1, max_size=6).map(lambda sealed: base64.b64encode(sealed).decode())
nonempty_texts = st.text(min_size=1, max_size=100)
thoughts = st.builds(Thinking, nonempty_texts, st.none() | signatures) | st.builds(Thinking, st.just(""), signatures)
images = st.builds(Image, st.builds(Base64Source, st.just("image/png"), st.just("aGk=")))
reply_blocks = st.builds(Text, nonempty_texts) | values.tool_uses | images | thoughts | values.opaques


def _is_merged_with(before: Block | None, block: Block, after: Block | None) -> bool:
    """Whether a decoder would merge two blocks: adjacent text is one block, and so is adjacent thinking."""
    match before, block:
        case Thinking(signature=None), Thinking():
            return True
        case Text(), Text():
            return not (isinstance(after, Thinking) and after.signature)
        case _:
            return False


def _drop_indistinguishable(content: Sequence[Block]) -> tuple[Block, ...]:
    """Only blocks that decode to themselves."""
    blocks: list[Block] = []
    for block in content:
        before = blocks[-1] if blocks else None
        if not _is_merged_with(before, block, blocks[-2] if len(blocks) > 1 else None):
            blocks.append(block)
    while blocks and isinstance(blocks[-1], Thinking) and blocks[-1].signature is None:
        blocks.pop()
    return tuple(blocks)


def _reply(content: tuple[Block, ...], stop_reason: StopReason, usage: Usage, model: str, id: str) -> Reply:
    called = stop_reason == "end_turn" and any(isinstance(block, ToolUse) for block in content)
    return Reply(content, "tool_use" if called else stop_reason, usage, model, id)


stop_reasons: st.SearchStrategy[StopReason] = st.sampled_from(["end_turn", "max_tokens", "refusal", "error"])
usages = st.builds(Usage, input=st.integers(0, 10**6), cache_read=st.integers(0, 10**6), output=st.integers(0, 10**6))
replies = st.builds(
    _reply,
    st.lists(reply_blocks, max_size=5).map(_drop_indistinguishable),
    stop_reasons,
    usages,
    values.names,
    values.ids,
)

VALUES = WireValues(parameters, replies)
