"""What a request says that asks for nothing: it may not end on the assistant, and no call may stay open."""

from holdfast.canonical.blocks import Text, ToolResult
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import call_id

CLOSING = "Wait."


def closing_behind(last: Passage | None) -> Passage:
    """The fixed words of a user, or a fixed answer to every call of the last message."""
    content = last.content if last is not None and last.role == "assistant" else ()
    calls = [id for block in content if (id := call_id(block)) is not None]
    return Passage("user", tuple(ToolResult(id, (Text(CLOSING),)) for id in calls) or (Text(CLOSING),))
