"""Which failures are known, what is done about each, and how often."""
