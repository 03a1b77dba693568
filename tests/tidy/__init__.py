"""Checks of the tree: sizes, names, documents, and their references to each other."""
