"""SQL and row formats that all engines share."""
