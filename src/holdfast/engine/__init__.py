"""The agent loop: decide what must happen next, do it, record it."""
