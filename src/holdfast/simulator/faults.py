"""Which failures can be ordered from the simulator, and how they are written."""

import math

import msgspec

from holdfast.errors import UserError

KNOWN_FAULTS = "an HTTP status from 400 to 599, alone or with a pause, as in 429;retry-after=1"
_TEXT_SHOWN_CHARS_MAX = 60


class StatusFault(msgspec.Struct, frozen=True):
    """The request fails with this status, before anything is read from the cache or written to it."""

    status: int
    retry_after_seconds: float | None = None


Fault = StatusFault
"""A union once there is a second kind."""


def parse_fault(text: str) -> Fault:
    kind, *options = (part.strip() for part in text.split(";"))
    if not (kind.isascii() and kind.isdigit() and 400 <= int(kind[:4]) <= 599):
        raise _unknown(text)
    retry_after: float | None = None
    for option in options:
        name, _, value = option.partition("=")
        retry_after = _seconds(value)
        if name.strip() != "retry-after" or retry_after is None:
            raise _unknown(text)
    return StatusFault(int(kind), retry_after)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _unknown(text: str) -> UserError:
    return UserError(f"unknown fault {text[:_TEXT_SHOWN_CHARS_MAX]!r}; known: {KNOWN_FAULTS}")
