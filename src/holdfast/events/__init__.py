"""Everything that can happen in a session, as one closed union of events, and the log protocol that stores them."""
