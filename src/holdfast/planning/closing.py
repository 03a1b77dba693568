"""The fixed user message that ends a ping: a request must not end on the assistant, nor leave a tool call open.

Claude Opus 4.6 and later answer 400 to a request that ends on an assistant message (reported in opencode issue 25725).
"""

from holdfast.canonical.blocks import Text, ToolResult
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import call_id

CLOSING = "Wait."


def closing_behind(last: Passage | None) -> Passage:
    """A fixed user text, or a fixed result for every tool call of the last message."""
    content = last.content if last is not None and last.role == "assistant" else ()
    calls = [id for block in content if (id := call_id(block)) is not None]
    return Passage("user", tuple(ToolResult(id, (Text(CLOSING),)) for id in calls) or (Text(CLOSING),))
