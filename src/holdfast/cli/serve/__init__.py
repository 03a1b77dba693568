"""`holdfast serve`: the API, the dashboard and the gateway in one process."""
