"""The service as its clients see it, over HTTP and on each store."""
