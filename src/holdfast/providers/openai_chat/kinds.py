"""How the kinds of blocks begin that we only carry, and that stand beside the content of a message."""

MESSAGE = "message."
"""A further member of the message itself; its bytes are the member's value."""

REASONING = "reasoning_details."
CALL = "tool_calls."

BESIDE_CONTENT = (MESSAGE, REASONING, CALL)
