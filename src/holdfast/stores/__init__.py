"""Where the event log is kept: in memory, or in a SQLite file."""
