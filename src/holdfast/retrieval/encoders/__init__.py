"""Encoders that turn texts into vectors, one module per model, and the registry that finds the installed ones."""
