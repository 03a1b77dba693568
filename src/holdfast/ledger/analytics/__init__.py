"""Cost and analytics queries over all sessions."""
