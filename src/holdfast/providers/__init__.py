"""How each provider spells a request and a reply, in pure pairs; and the one place that opens sockets."""
