"""Where the figures of all sessions come from; one small seam, so that tables can stand in for the log."""

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Protocol

from holdfast.catalog.lookup import Models
from holdfast.events.log import Log, SessionRow
from holdfast.ledger.figures import SessionFigures, figures_of

SESSIONS_MAX = 5_000
"""How many sessions' figures are remembered; those of others are made anew from their events."""


class Figures(Protocol):
    def sessions(self, *, since: float = 0.0) -> Iterator[SessionFigures]:
        """The figures of sessions with an event since then, newest activity first."""


class LogFigures:
    """Reads a session again only if it has more events than before. Safe in any thread.

    What simulated sessions took is nobody's money: they are left out unless asked for.
    """

    def __init__(self, log: Log, models: Models, *, simulated: bool = False) -> None:
        self._simulated = simulated
        self._log = log
        self._models = models
        self._lock = Lock()
        self._known: OrderedDict[str, SessionFigures] = OrderedDict()

    def sessions(self, *, since: float = 0.0) -> Iterator[SessionFigures]:
        for row in self._log.sessions():
            if row.last_event_at >= since:
                figures = self._of(row)
                if self._simulated or not figures.simulated:
                    yield figures

    def _of(self, row: SessionRow) -> SessionFigures:
        with self._lock:
            known = self._known.pop(row.id, None)
        if known is None or known.row != row:
            known = figures_of(row, tuple(self._log.read(row.id)), self._models)
        with self._lock:
            self._known[row.id] = known
            if len(self._known) > SESSIONS_MAX:
                self._known.popitem(last=False)
        return known
