"""What OpenRouter can spell."""

import msgspec
from hypothesis import strategies as st

import wire_values as values
from holdfast.canonical.blocks import Block, Opaque, RedactedThinking
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply
from holdfast.canonical.usage import Usage
from wires import WireValues
from wires.openai_chat import parameters_with, replies_with, usages

summaries = st.builds(
    lambda said: Opaque(
        "reasoning_details.reasoning.summary",
        plain_json({"type": "reasoning.summary", "summary": said, "format": "openai-responses-v1", "index": 7}),
    ),
    values.texts,
)


def of_anthropic(reply: Reply) -> Reply:
    """What is written to that provider's cache is kept for five minutes."""
    usage = Usage(reply.usage.input, reply.usage.cache_read, reply.usage.cache_write_other, output=reply.usage.output)
    return msgspec.structs.replace(reply, usage=usage, model=f"anthropic/{reply.model}")


thoughts: st.SearchStrategy[Block] = values.thinkings | st.builds(RedactedThinking, values.texts)
replies = replies_with(st.lists(thoughts, max_size=2).map(tuple) | st.tuples(summaries), usages)
VALUES = WireValues(
    parameters_with(st.sampled_from(['{"effort": "high"}', '{"max_tokens":2000,"exclude":false}'])),
    replies | replies.map(of_anthropic),
    ("5m", "1h"),
)
