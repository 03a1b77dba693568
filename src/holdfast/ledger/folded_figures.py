"""Analytics queries for a log without roll-up tables: every result is folded from the events."""

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
        sums_by_key: dict[str | int, Sums] = {0: Sums()} if group_by == "none" else {}
        for row, posting in self._postings(scope):
            if posting.sums.entries and is_wanted(narrowed, row, posting):
                key = key_of(group_by, row, posting)
                sums_by_key[key] = sums_by_key.get(key, Sums()) + posting.sums
        return tuple(Group(name_of(group_by, key), amounts_of(sums)) for key, sums in sums_by_key.items())

    def failures(self, scope: Scope = EVERYTHING) -> dict[str, int]:
        counts: dict[str, int] = {}
        for _, posting in self._postings(scope):
            if posting.outcome not in (None, "completed"):
                outcome = str(posting.outcome)
                counts[outcome] = counts.get(outcome, 0) + 1
        return counts

    def latencies(self, scope: Scope = EVERYTHING) -> dict[str, dict[int, int]]:
        counts_by_model: dict[str, dict[int, int]] = {}
        for _, posting in self._postings(scope):
            if posting.entry is not None:
                counts = counts_by_model.setdefault(posting.model, {})
                counts[posting.latency_ms] = counts.get(posting.latency_ms, 0) + 1
        return counts_by_model

    def sized(self, limits: Sequence[int], scope: Scope = EVERYTHING) -> tuple[Sized, ...]:
        usage_by_key: dict[tuple[str, int], tuple[int, Usage]] = {}
        for _, posting in self._postings(scope):
            if posting.entry is not None:
                usage = posting.sums.usage
                key = posting.model, sum(usage.tokens_sent > limit for limit in limits)
                calls, usage_before = usage_by_key.get(key, (0, Usage()))
                usage_by_key[key] = calls + 1, usage_before + usage
        return tuple(Sized(*key, *calls_and_usage) for key, calls_and_usage in sorted(usage_by_key.items()))

    def broken(
        self,
        scope: Scope = EVERYTHING,
        *,
        kind: VerdictKind | None = None,
        component: str | None = None,
        limit: int,
        skip: int,
    ) -> tuple[BrokenCall, ...]:
        ranked_calls: list[tuple[tuple[int, str, int, str], BrokenCall]] = []
        for row, posting in self._postings(scope):
            entry = posting.entry
            verdict = entry.verdict if entry else None
            if entry is None or verdict is None or verdict.kind == "held":
                continue
            if kind in (None, verdict.kind) and component in (None, at_fault(verdict.component)):
                rank = -posting.sums.lost, row.id, entry.record.number, entry.event_id
                ranked_calls.append((rank, _build_broken_call(row, entry)))
        return tuple(
            call for _, call in sorted(ranked_calls, key=lambda ranked_call: ranked_call[0])[skip : skip + limit]
        )

    def skill_loads(self, scope: Scope = EVERYTHING) -> tuple[SkillLoad, ...]:
        return tuple(
            SkillLoad(row.id, event.at, payload.skill_id, payload.load_reason, payload.load_size_tokens)
            for row, events in self._sessions(simulated=scope.simulated)
            for event in events
            if isinstance(payload := event.payload, SkillLoaded) and scope.since <= event.at < scope.until
        )

    def session_costs(
        self, *, order: FiguresOrder, limit: int, skip: int, simulated: bool = False
    ) -> tuple[SessionCost, ...]:
        costs = [self._session_cost(row, events) for row, events in self._sessions(simulated=simulated)]
        if order == "cost":
            costs.sort(key=lambda cost: (-cost.spent_usd, cost.row.id))
        return tuple(costs[skip : skip + limit])

    def _session_cost(self, row: SessionRow, events: Sequence[Event]) -> SessionCost:
        session_postings = list(postings(events, self._models))
        models = [posting.model for posting in session_postings if posting.entry is not None]
        started = next((event.payload for event in events if isinstance(event.payload, SessionStarted)), None)
        return SessionCost(
            row=row,
            spent_usd=dollars(sum(posting.sums.spent for posting in session_postings))
            if session_postings
            else Decimal(0),
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
                is_in_scope = scope.since <= min(posting.at, AT_MAX) < scope.until
                if is_in_scope and (scope.simulated or not posting.simulated):
                    yield row, posting

    def _sessions(self, *, simulated: bool) -> Iterator[tuple[SessionRow, list[Event]]]:
        for row in self._log.sessions():
            events = list(self._log.read(row.id))
            is_simulated = any(
                isinstance(event.payload, SessionStarted) and event.payload.simulated for event in events
            )
            if simulated or not is_simulated:
                yield row, events


def _build_broken_call(row: SessionRow, entry: Entry) -> BrokenCall:
    assert entry.verdict is not None
    call = entry.record
    return BrokenCall(row.id, row.name, call.number, call.at, call.model, entry.verdict)
