"""What the provider's cache did with each call: verdicts, prefix changes and their causes, cache state."""
