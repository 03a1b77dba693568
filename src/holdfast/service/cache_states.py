"""The cache state of every session, brought up to date by reading no more than what is new."""

from collections import OrderedDict
from threading import Lock

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.ledger.cache_state import CacheState, fold_cache

SESSIONS_MAX = 10_000
"""How many sessions are remembered; another one is read from its first event."""


class CacheStates:
    """Safe in any thread."""

    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models
        self._lock = Lock()
        self._known: OrderedDict[str, CacheState] = OrderedDict()

    def newest(self, *, limit: int) -> tuple[CacheState, ...]:
        """Newest activity first."""
        return tuple(self.of(row.id) for row in self._log.sessions(limit=limit))

    def of(self, session_id: str) -> CacheState:
        """A session without events has no model."""
        with self._lock:
            before = self._known.pop(session_id, CacheState(session_id))
            try:
                state = fold_cache(before, self._log.read(session_id, after=before.last_event_id), self._models)
            except UserError:
                # It was deleted, and is there again.
                state = fold_cache(CacheState(session_id), self._log.read(session_id), self._models)
            if state.last_event_id is not None:
                self._known[session_id] = state
                if len(self._known) > SESSIONS_MAX:
                    self._known.popitem(last=False)
            return state
