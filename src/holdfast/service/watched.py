"""The prompts of the sessions that people look at, brought up to date by reading no more than what is new."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.ledger.call_layers import Strata

SESSIONS_MAX = 16
"""How many sessions are remembered; few are looked at at once, and each is as large as its calls are many."""

Made = TypeVar("Made")


class WatchedSessions:
    """Safe in any thread."""

    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models
        self._lock = Lock()
        self._known: OrderedDict[str, Strata] = OrderedDict()

    def of(self, session_id: str, make: Callable[[Strata], Made]) -> Made:
        """What is made of a session as it is now; one without events has no model."""
        with self._lock:
            found = self._known.pop(session_id, None) or Strata(session_id, self._models)
            if found.last_event_id is not None and next(self._log.read(session_id), None) is None:
                # It was deleted: what was read of it is nobody's to see any more.
                found = Strata(session_id, self._models)
            try:
                found.take(self._log.read(session_id, after=found.last_event_id))
            except UserError:
                # It was deleted, and is there again.
                found = Strata(session_id, self._models)
                found.take(self._log.read(session_id))
            if found.last_event_id is not None:
                self._known[session_id] = found
                if len(self._known) > SESSIONS_MAX:
                    self._known.popitem(last=False)
            return make(found)
