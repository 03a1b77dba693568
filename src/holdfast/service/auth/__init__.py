"""Who may call the service: API keys, the browser's sign-in cookie, and the host and origin checks."""
