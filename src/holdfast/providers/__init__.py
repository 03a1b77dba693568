"""How each provider spells a request and a reply: pure functions in pairs, and one place that opens sockets."""
