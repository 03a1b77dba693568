"""Adds cache breakpoints and a cache key to requests that other clients wrote, and changes nothing else."""
