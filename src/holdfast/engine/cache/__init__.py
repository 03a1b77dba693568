"""Everything that a session does for its provider cache: plans, settings, pings, explicit and response caches."""
