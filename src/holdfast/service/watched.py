"""Caches the prompt layers of recently viewed sessions and updates them by reading only new events."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.ledger.call_layers import Strata

SESSIONS_MAX = 16
"""How many sessions are held in memory: few are viewed at once, and each grows with its number of calls."""

Result = TypeVar("Result")


class WatchedSessions:
    """Thread-safe."""

    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models
        self._lock = Lock()
        self._sessions: OrderedDict[str, Strata] = OrderedDict()

    def of(self, session_id: str, make: Callable[[Strata], Result]) -> Result:
        """Returns `make` of the up-to-date session; a session without events has no model."""
        with self._lock:
            session = self._sessions.pop(session_id, None) or Strata(session_id, self._models)
            if session.last_event_id is not None and next(self._log.read(session_id), None) is None:
                # The session was deleted, so its content must not be shown any more.
                session = Strata(session_id, self._models)
            try:
                session.take(self._log.read(session_id, after=session.last_event_id))
            except UserError:
                # The session was deleted and created again, so our last event id is unknown.
                session = Strata(session_id, self._models)
                session.take(self._log.read(session_id))
            if session.last_event_id is not None:
                self._sessions[session_id] = session
                if len(self._sessions) > SESSIONS_MAX:
                    self._sessions.popitem(last=False)
            return make(session)
