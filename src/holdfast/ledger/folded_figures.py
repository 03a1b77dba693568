"""The figures of a log that keeps no tables: every answer is added up from the events."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models
from holdfast.events.envelope import Event
from holdfast.events.log import Log, SessionRow
from holdfast.events.payloads import SessionStarted, SkillLoaded, TurnCancelled, TurnCompleted, TurnStarted
from holdfast.ledger.answers import EVERYTHING, amounts_of
from holdfast.ledger.books import Entry
from holdfast.ledger.figures import BrokenCall, FiguresOrder, SessionCost, Sized, SkillLoad
from holdfast.ledger.groups import Group, GroupBy, Narrowed, is_wanted, key_of, name_of
from holdfast.ledger.money import AT_MAX, dollars
from holdfast.ledger.postings import Posting, Sums, at_fault, postings
from holdfast.ledger.tables import Scope
from holdfast.ledger.verdicts import VerdictKind

ALL = Narrowed()


class FoldedFigures:
    def __init__(self, log: Log, models: Models) -> None:
        self._log = log
        self._models = models

    def groups(self, group_by: GroupBy, scope: Scope = EVERYTHING, narrowed: Narrowed = ALL) -> tuple[Group, ...]:
        found: dict[str | int, Sums] = {0: Sums()} if group_by == "none" else {}
        for row, posting in self._postings(scope):
            if posting.sums.entries and is_wanted(narrowed, row, posting):
                key = key_of(group_by, row, posting)
                found[key] = found.get(key, Sums()) + posting.sums
        return tuple(Group(name_of(group_by, key), amounts_of(sums)) for key, sums in found.items())

    def failures(self, scope: Scope = EVERYTHING) -> dict[str, int]:
        found: dict[str, int] = {}
        for _, posting in self._postings(scope):
            if posting.outcome not in (None, "completed"):
                outcome = str(posting.outcome)
                found[outcome] = found.get(outcome, 0) + 1
        return found

    def latencies(self, scope: Scope = EVERYTHING) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for _, posting in self._postings(scope):
            if posting.entry is not None:
                counts = found.setdefault(posting.model, {})
                counts[posting.latency_ms] = counts.get(posting.latency_ms, 0) + 1
        return found

    def sized(self, limits: Sequence[int], scope: Scope = EVERYTHING) -> tuple[Sized, ...]:
        found: dict[tuple[str, int], tuple[int, Usage]] = {}
        for _, posting in self._postings(scope):
            if posting.entry is not None:
                usage = posting.sums.usage
                key = posting.model, sum(usage.tokens_sent > limit for limit in limits)
                calls, before = found.get(key, (0, Usage()))
                found[key] = calls + 1, before + usage
        return tuple(Sized(*key, *took) for key, took in sorted(found.items()))

    def broken(
        self,
        scope: Scope = EVERYTHING,
        *,
        kind: VerdictKind | None = None,
        component: str | None = None,
        limit: int,
        skip: int,
    ) -> tuple[BrokenCall, ...]:
        found: list[tuple[tuple[int, str, int, str], BrokenCall]] = []
        for row, posting in self._postings(scope):
            entry = posting.entry
            verdict = entry.verdict if entry else None
            if entry is None or verdict is None or verdict.kind == "held":
                continue
            if kind in (None, verdict.kind) and component in (None, at_fault(verdict.component)):
                place = -posting.sums.lost, row.id, entry.record.number, entry.event_id
                found.append((place, _broken(row, entry)))
        return tuple(call for _, call in sorted(found, key=lambda one: one[0])[skip : skip + limit])

    def skill_loads(self, scope: Scope = EVERYTHING) -> tuple[SkillLoad, ...]:
        return tuple(
            SkillLoad(row.id, event.at, it.skill_id, it.load_reason, it.load_size_tokens)
            for row, events in self._sessions(simulated=scope.simulated)
            for event in events
            if isinstance(it := event.payload, SkillLoaded) and scope.since <= event.at < scope.until
        )

    def session_costs(
        self, *, order: FiguresOrder, limit: int, skip: int, simulated: bool = False
    ) -> tuple[SessionCost, ...]:
        found = [self._cost(row, events) for row, events in self._sessions(simulated=simulated)]
        if order == "cost":
            found.sort(key=lambda one: (-one.spent_usd, one.row.id))
        return tuple(found[skip : skip + limit])

    def _cost(self, row: SessionRow, events: Sequence[Event]) -> SessionCost:
        booked = list(postings(events, self._models))
        models = [posting.model for posting in booked if posting.entry is not None]
        started = next((event.payload for event in events if isinstance(event.payload, SessionStarted)), None)
        return SessionCost(
            row=row,
            spent_usd=dollars(sum(posting.sums.spent for posting in booked)) if booked else Decimal(0),
            model=models[-1] if models else row.model,
            turns=sum(isinstance(event.payload, TurnCompleted | TurnCancelled) for event in events),
            workspace_path=started.workspace_path if started else None,
        )

    def turn(self, turn_id: str) -> tuple[Event, ...]:
        for row in self._log.sessions():
            events = list(self._log.read(row.id))
            if any(event.id == turn_id and isinstance(event.payload, TurnStarted) for event in events):
                return tuple(event for event in events if turn_id in (event.id, event.turn_id))
        return ()

    def _postings(self, scope: Scope) -> Iterator[tuple[SessionRow, Posting]]:
        for row in self._log.sessions():
            for posting in postings(self._log.read(row.id), self._models):
                within = scope.since <= min(posting.at, AT_MAX) < scope.until
                if within and (scope.simulated or not posting.simulated):
                    yield row, posting

    def _sessions(self, *, simulated: bool) -> Iterator[tuple[SessionRow, list[Event]]]:
        for row in self._log.sessions():
            events = list(self._log.read(row.id))
            played = any(isinstance(event.payload, SessionStarted) and event.payload.simulated for event in events)
            if simulated or not played:
                yield row, events


def _broken(row: SessionRow, entry: Entry) -> BrokenCall:
    assert entry.verdict is not None
    call = entry.record
    return BrokenCall(row.id, row.name, call.number, call.at, call.model, entry.verdict)
