"""What all payloads have in common."""

import msgspec


class Payload(msgspec.Struct, frozen=True, tag_field="type"):
    """Common to all payloads: the tag, which is the event's type."""
