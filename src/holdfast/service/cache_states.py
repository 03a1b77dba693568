"""Caches the cache state per session and updates it by reading only new events."""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.events.envelope import Event
from holdfast.events.log import Log
from holdfast.ledger.books import ENTERED, Books, entered
from holdfast.ledger.cache_state import CacheState, fold_cache
from holdfast.ledger.verdicts import Verdict

SESSIONS_MAX = 10_000
"""How many sessions are held in memory; an evicted one is read again from its first event."""


class KnownCache(msgspec.Struct, frozen=True):
    """A session's cache state, the accounting state for its next call, and the verdict on its last one."""

    state: CacheState
    books: Books = Books()
    verdict: Verdict | None = None


class CacheStates:
    """Thread-safe."""

    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models
        self._lock = Lock()
        self._caches: OrderedDict[str, KnownCache] = OrderedDict()

    def newest(self, *, limit: int, skip: int = 0) -> tuple[KnownCache, ...]:
        """Newest activity first."""
        return tuple(self.known(row.id) for row in self._log.sessions(limit=skip + limit)[skip:])

    def of(self, session_id: str) -> CacheState:
        """A session without events has no model."""
        return self.known(session_id).state

    def known(self, session_id: str) -> KnownCache:
        with self._lock:
            # Pop and reinsert: the dict's order is the order of use.
            before = self._caches.pop(session_id, KnownCache(CacheState(session_id)))
            try:
                cache = self._advance(before, self._log.read(session_id, after=before.state.last_event_id))
            except UserError:
                # The session was deleted and created again, so our last event id is unknown.
                cache = self._advance(KnownCache(CacheState(session_id)), self._log.read(session_id))
            if cache.state.last_event_id is not None:
                self._caches[session_id] = cache
                if len(self._caches) > SESSIONS_MAX:
                    self._caches.popitem(last=False)
            return cache

    def _advance(self, before: KnownCache, events: Iterable[Event]) -> KnownCache:
        state, books, verdict = before.state, before.books, before.verdict
        for event in events:
            state = fold_cache(state, (event,), self._models)
            if isinstance(event.payload, ENTERED):
                books, entry = entered(books, event, self._models)
                verdict = entry.verdict if entry is not None and entry.verdict is not None else verdict
        return KnownCache(state, books, verdict)
