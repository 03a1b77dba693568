"""Tells whether a session used a simulated model, so that its cost is not real money."""

from holdfast.events.log import Log
from holdfast.events.payloads import SessionStarted


def is_simulated(log: Log, session_id: str) -> bool:
    """Reads it from the session's first event."""
    first_event = next(iter(log.read(session_id)), None)
    return first_event is not None and isinstance(first_event.payload, SessionStarted) and first_event.payload.simulated
