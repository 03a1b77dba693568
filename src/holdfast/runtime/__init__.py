"""Where parts are picked and put together: configuration, sessions, and nothing that any part could do itself."""
