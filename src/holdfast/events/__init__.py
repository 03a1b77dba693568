"""What can happen in a session: one closed union of events, and the log that keeps them."""
