"""The HTTP service for teams: cache state and controls, analytics, API keys, instructions and a live feed."""
