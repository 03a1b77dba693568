"""Adapters that encode requests and decode responses for each provider, and the only module that opens sockets."""
