"""Composition of sessions: configuration is read here and the dependencies of a session are chosen and connected."""
