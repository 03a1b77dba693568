"""What was passed over while reading, and why; a source reports it instead of raising."""

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the file, folder or command; `reason` never quotes its content."""

    subject: str
    reason: str
