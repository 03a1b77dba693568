"""Finds, parses, validates and searches skills on disk."""
