"""Whether the tree is in order: its sizes, its names, its documents, and what they say of each other."""
