"""What if an agent keeps its provider's own API? Endpoints of that shape which forward, watch, and improve."""
