"""The tables of a log that keeps none: every answer is added up from the events."""

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.catalog.lookup import Models
from holdfast.events.log import Log, SessionRow
from holdfast.ledger.answers import Answers, Rows
from holdfast.ledger.books import Entry
from holdfast.ledger.postings import Posting, Sums, postings
from holdfast.ledger.rollups import RollUp, Totals
from holdfast.ledger.tables import Scope, SessionOrder, Tables
from holdfast.ledger.verdicts import VerdictKind


def folded_tables(log: Log, models: Models) -> Tables:
    """Tables that read every event of the sessions asked for, for every answer."""
    return Answers(_Folded(log, models))


class _Folded:
    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: Scope) -> Rows:
        totals = Totals()
        totals.post(posting for _, posting in self._postings(scope))
        places = [table.keys.index(key) for key in keys]
        for key, sums in totals.rows(table).items():
            yield tuple(key[place] for place in places), sums

    def sessions(
        self, scope: Scope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        found: dict[str, tuple[SessionRow, Sums]] = {}
        for row, posting in self._postings(scope):
            found[row.id] = (row, found[row.id][1] + posting.sums if row.id in found else posting.sums)
        spenders = [(row, sums) for row, sums in found.values() if sums.calls or sums.spent]
        return _sorted(spenders, order)[offset : offset + limit]

    def worst(self, session_ids: Sequence[str], scope: Scope) -> dict[str, VerdictKind]:
        most: dict[str, tuple[int, VerdictKind]] = {}
        for row, posting in self._postings(scope):
            lost, verdict = posting.sums.lost, posting.entry.verdict if posting.entry else None
            if verdict is not None and lost > most.get(row.id, (0, None))[0]:
                most[row.id] = (lost, verdict.kind)
        return {id: kind for id, (_, kind) in most.items() if id in session_ids}

    def calls(self, session_id: str, *, after: int, limit: int) -> Sequence[Entry]:
        made = (posting.entry for posting in postings(self._log.read(session_id), self._models))
        return tuple(islice((one for one in made if one is not None and one.record.number > after), limit))

    def _postings(self, scope: Scope) -> Iterator[tuple[SessionRow, Posting]]:
        for row in self._log.sessions():
            if scope.session_id in (None, row.id):
                for posting in postings(self._log.read(row.id), self._models):
                    if posting.at >= scope.since and (scope.simulated or not posting.simulated):
                        yield row, posting


def _sorted(found: list[tuple[SessionRow, Sums]], order: SessionOrder) -> list[tuple[SessionRow, Sums]]:
    match order:
        case "lost":
            return sorted(found, key=lambda one: (-one[1].lost, -one[1].spent, one[0].id))
        case "spent":
            return sorted(found, key=lambda one: (-one[1].spent, -one[1].lost, one[0].id))
        case "newest":
            return sorted(found, key=lambda one: (one[0].last_event_at, one[0].id), reverse=True)
