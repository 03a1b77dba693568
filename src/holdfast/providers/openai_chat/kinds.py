"""Kind prefixes of opaque blocks that are not part of a message's content."""

MESSAGE = "message."
"""Another member of the message itself; its bytes are the member's value."""

REASONING = "reasoning_details."
CALL = "tool_calls."

BESIDE_CONTENT = (MESSAGE, REASONING, CALL)
