"""Where the cache marks go, and why there."""
