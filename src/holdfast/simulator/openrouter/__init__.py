"""The simulated OpenRouter API."""
