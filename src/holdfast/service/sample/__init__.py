"""Sample sessions and instructions, so that a new dashboard is not empty."""
