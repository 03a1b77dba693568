"""What recorded conversations would have cost under another plan."""
