"""Adds cache breakpoints and cache keys to the requests of other programs."""
