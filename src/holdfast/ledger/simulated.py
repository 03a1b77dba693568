"""Which sessions spoke to a simulated model, so that what they took is nobody's money."""

from holdfast.events.log import Log
from holdfast.events.payloads import SessionStarted


def is_simulated(log: Log, session_id: str) -> bool:
    """What a session said of itself when it began."""
    first = next(iter(log.read(session_id)), None)
    return first is not None and isinstance(first.payload, SessionStarted) and first.payload.simulated
