"""The live feed: new events of all processes as server-sent events."""
