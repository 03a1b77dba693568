"""What of a conversation stays in view when it grows too long, and what stands for the rest."""
