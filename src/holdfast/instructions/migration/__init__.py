"""Migrate instruction files to units: split, name, classify and fit them to a manifest, for people to review."""
