"""What may leave the prompt, and what stands in its place."""
