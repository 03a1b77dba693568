"""A pytest plugin that checks, in an agent's own tests, whether its prompt cache keeps hitting."""
