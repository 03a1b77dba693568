"""Commands for stored sessions: list, show, history, compact, certify and recovery."""
