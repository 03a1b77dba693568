"""What goes into the prompt, and in which order: stable parts first, what changes last."""
