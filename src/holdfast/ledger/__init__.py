"""Derives calls, usage, cost and cache verdicts from the event log."""
