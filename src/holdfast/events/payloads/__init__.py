"""The payload of every event type, by subject, and their union."""
