"""Providers that run on your machine: their APIs with their caches, in simulated or real time."""
