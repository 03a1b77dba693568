"""Local simulation of provider APIs with their prompt caches, in simulated or real time."""
