"""The text that answers a tool call which was interrupted before its result arrived."""

# The model reads this: rewording it would change the bytes of a prompt.
INTERRUPTED_RESULT_TEXT = "This call was interrupted before it gave a result."
