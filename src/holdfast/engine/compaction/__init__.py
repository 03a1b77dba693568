"""Compaction of a live session: when it is due, what it proposes, and the summary that replaces old messages."""
