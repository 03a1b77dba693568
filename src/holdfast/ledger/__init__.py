"""What the events mean: calls, usage and cost."""
