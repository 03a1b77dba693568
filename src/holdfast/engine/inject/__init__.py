"""Adds cache breakpoints and cache keys to the arguments of the providers' own SDK clients."""
