"""Does an agent's prompt cache hold, as its own tests see it? A plugin for pytest."""
