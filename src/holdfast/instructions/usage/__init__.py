"""Which units an agent used: as its trace shows, as it reports, and in shadow mode."""
