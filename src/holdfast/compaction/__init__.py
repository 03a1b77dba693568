"""Compaction: what stays in the prompt when a conversation grows too long, and the summary that replaces the rest."""
