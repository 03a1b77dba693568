"""Single requests from files: parsed, explained and compared."""
