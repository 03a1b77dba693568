"""The values that OpenRouter's format can encode."""

import msgspec
from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import WireValues
from tests.support.wires.openai_chat import parameters_with, replies_with, usages

from holdfast.types.blocks import Block, Opaque, RedactedThinking
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage

summaries = st.builds(
    lambda text: Opaque(
        "reasoning_details.reasoning.summary",
        encode_json({"type": "reasoning.summary", "summary": text, "format": "openai-responses-v1", "index": 7}),
    ),
    values.texts,
)


def of_anthropic(reply: Reply) -> Reply:
    """Cache writes of that provider have a TTL of five minutes."""
    usage = Usage(reply.usage.input, reply.usage.cache_read, reply.usage.cache_write_other, output=reply.usage.output)
    return msgspec.structs.replace(reply, usage=usage, model=f"anthropic/{reply.model}")


thoughts: st.SearchStrategy[Block] = values.thinkings | st.builds(RedactedThinking, values.texts)
replies = replies_with(st.lists(thoughts, max_size=2).map(tuple) | st.tuples(summaries), usages)
VALUES = WireValues(
    parameters_with(st.sampled_from(['{"effort": "high"}', '{"max_tokens":2000,"exclude":false}'])),
    replies | replies.map(of_anthropic),
    ("5m", "1h"),
)
