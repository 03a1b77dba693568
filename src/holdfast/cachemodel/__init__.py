"""What a provider's prompt cache would do with a call: a pure state machine over frozen values."""
