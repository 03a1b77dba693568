"""Rewrites forwarded requests so that prompt caches hit, without changing their content."""
