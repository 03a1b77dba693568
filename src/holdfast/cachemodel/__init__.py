"""A model of the providers' prompt caches: a pure state machine over frozen values."""
