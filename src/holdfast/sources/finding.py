"""A report on something that was skipped while reading; sources return these instead of raising."""

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the file, folder or command; `reason` never quotes its content."""

    subject: str
    reason: str
