"""The write path of a database: queued jobs, committed in groups."""
