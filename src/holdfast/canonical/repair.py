"""The text that answers a tool call which was interrupted before its result arrived."""

# The model reads this, and it is part of stored histories: a reworded text would change cached bytes.
INTERRUPTED = "This call was interrupted before it gave a result."
