"""Where the event log is kept: in memory, in a SQLite file, or in a PostgreSQL database."""
