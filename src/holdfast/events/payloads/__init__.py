"""The payload of every event type, by subject, their common base, and their union."""

import msgspec


class Payload(msgspec.Struct, frozen=True, tag_field="type"):
    """The tag of a payload is the event type."""
