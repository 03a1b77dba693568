"""Cost queries for a log without roll-up tables: every result is folded from the events."""

from collections.abc import Iterator, Sequence

from holdfast.catalog.lookup import Models
from holdfast.events.log import Log, SessionRow
from holdfast.ledger.answers import Answers, Rows
from holdfast.ledger.postings import Posting, Sums, postings
from holdfast.ledger.rollups import RollUp, Totals
from holdfast.ledger.tables import Scope, SessionOrder, Tables
from holdfast.ledger.verdicts import VerdictKind


def folded_tables(log: Log, models: Models) -> Tables:
    """Queries that read every event of the requested sessions each time."""
    return Answers(_EventSource(log, models))


class _EventSource:
    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: Scope) -> Rows:
        totals = Totals()
        totals.post(posting for _, posting in self._postings(scope))
        positions = [table.keys.index(key) for key in keys]
        for key, sums in totals.rows(table).items():
            yield tuple(key[position] for position in positions), sums

    def sessions(
        self, scope: Scope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        sums_by_session: dict[str, tuple[SessionRow, Sums]] = {}
        for row, posting in self._postings(scope):
            sums_by_session[row.id] = (
                row,
                sums_by_session[row.id][1] + posting.sums if row.id in sums_by_session else posting.sums,
            )
        spenders = [(row, sums) for row, sums in sums_by_session.values() if sums.calls or sums.spent]
        return _sort_sessions(spenders, order)[offset : offset + limit]

    def worst(self, session_ids: Sequence[str], scope: Scope) -> dict[str, VerdictKind]:
        largest_losses: dict[str, tuple[int, VerdictKind]] = {}
        for row, posting in self._postings(scope):
            lost, verdict = posting.sums.lost, posting.entry.verdict if posting.entry else None
            if verdict is not None and lost > largest_losses.get(row.id, (0, None))[0]:
                largest_losses[row.id] = (lost, verdict.kind)
        return {id: kind for id, (_, kind) in largest_losses.items() if id in session_ids}

    def _postings(self, scope: Scope) -> Iterator[tuple[SessionRow, Posting]]:
        for row in self._log.sessions():
            if scope.session_id in (None, row.id):
                for posting in postings(self._log.read(row.id), self._models):
                    if scope.since <= posting.at < scope.until and (scope.simulated or not posting.simulated):
                        yield row, posting


def _sort_sessions(sessions: list[tuple[SessionRow, Sums]], order: SessionOrder) -> list[tuple[SessionRow, Sums]]:
    match order:
        case "lost":
            return sorted(sessions, key=lambda session: (-session[1].lost, -session[1].spent, session[0].id))
        case "spent":
            return sorted(sessions, key=lambda session: (-session[1].spent, -session[1].lost, session[0].id))
        case "newest":
            return sorted(sessions, key=lambda session: (session[0].last_event_at, session[0].id), reverse=True)
