"""Checks of a tree: each function takes its root and returns one line per offender."""
