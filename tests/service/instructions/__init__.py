"""The instruction routes of the service, over HTTP and on each store."""
