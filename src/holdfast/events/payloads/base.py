"""The common base of all event payloads."""

import msgspec


class Payload(msgspec.Struct, frozen=True, tag_field="type"):
    """The tag of a payload is the event type."""
