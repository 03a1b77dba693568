"""The simulated Messages API of Anthropic."""
