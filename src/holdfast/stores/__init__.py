"""Stores for the event log and everything beside it: in memory, SQLite and PostgreSQL."""
