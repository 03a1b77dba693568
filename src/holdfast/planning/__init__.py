"""Where cache breakpoints go, with which TTL, and when an idle cache is pinged."""
