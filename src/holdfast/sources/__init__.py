"""Reads what an agent's context is built from: instruction files, skills, memory files, git state, environment."""
