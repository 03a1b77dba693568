"""Commands that read request files: explain, diff and doctor."""
