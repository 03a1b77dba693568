"""How figures are read from a database: sums where they are kept, rows of calls where not, and never the whole log."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.errors import StoreError
from holdfast.events.envelope import Event
from holdfast.events.payloads import SessionStarted, SkillLoaded, TurnStarted
from holdfast.ledger.answers import EVERYTHING, amounts_of
from holdfast.ledger.figures import BrokenCall, FiguresOrder, SessionCost, Sized, SkillLoad
from holdfast.ledger.folded_figures import ALL
from holdfast.ledger.groups import Group, GroupBy, Narrowed, name_of
from holdfast.ledger.money import dollars
from holdfast.ledger.postings import Sums
from holdfast.ledger.postings import cells as cells_in
from holdfast.ledger.rollups import ACCOUNT_DAYS, DAYS, OUTCOME_DAYS
from holdfast.ledger.tables import Scope
from holdfast.ledger.verdicts import Verdict, VerdictKind
from holdfast.stores.figure_queries import PLAYED, FigureQueries, cells_of
from holdfast.stores.queries import Cell
from holdfast.stores.rows import event_of, session_of
from holdfast.stores.table_queries import ARMS, TableQueries
from holdfast.stores.table_reads import Fetch, TableReads, days_of

TURN_BATCH_EVENTS = 128
BY_DAY: frozenset[str] = frozenset({"model", "provider", "day", "none"})
BY_ACCOUNT: frozenset[str] = frozenset({"gateway_key", "user", "team", "day", "none"})
BY_SESSION: frozenset[str] = frozenset({"session", "parent_session", "is_worker", "day", "none"})

_verdict = msgspec.json.Decoder(Verdict).decode


class FigureReads:
    def __init__(self, fetch: Fetch, queries: TableQueries, catch_up: Callable[[], None]) -> None:
        self._fetch = fetch
        self._queries = FigureQueries(queries)
        self._tables = TableReads(fetch, queries, catch_up)
        self._catch_up = catch_up

    def groups(self, group_by: GroupBy, scope: Scope = EVERYTHING, narrowed: Narrowed = ALL) -> tuple[Group, ...]:
        """Whole days from the sums that are kept of them, if they tell such groups apart; else all from the rows."""
        if group_by in BY_DAY and narrowed.workers and narrowed.by <= {"model", "provider"}:
            rows = self._by_day(group_by, scope, narrowed)
        elif group_by in BY_ACCOUNT and narrowed.workers and _names_accounts(narrowed):
            rows = self._by_account(group_by, scope, narrowed)
        else:
            rows = self._by_rows(group_by, scope, narrowed)
        found: dict[object, Sums] = {0: Sums()} if group_by == "none" else {}
        for key, sums in rows:
            found[key] = found.get(key, Sums()) + sums
        return tuple(Group(name_of(group_by, key), amounts_of(sums)) for key, sums in found.items())

    def _by_day(self, group_by: GroupBy, scope: Scope, narrowed: Narrowed) -> Iterable[tuple[object, Sums]]:
        for (provider, model, day), sums in self._tables.rows(DAYS, ("provider", "model", "day"), scope):
            if narrowed.model in (None, model) and narrowed.provider in (None, provider):
                keys: dict[str, object] = {"provider": provider, "model": model, "day": day, "none": 0}
                yield keys[group_by], Sums(*sums)

    def _by_account(self, group_by: GroupBy, scope: Scope, narrowed: Narrowed) -> Iterable[tuple[object, Sums]]:
        """Narrowed down, or with what is left of all for nobody."""
        booked = Sums()
        columns = ("day", "key_id", "user_id", "team_id")
        for (day, key_id, user_id, team_id), cells in self._tables.rows(ACCOUNT_DAYS, columns, scope):
            keys: dict[str, object] = {"gateway_key": key_id, "user": user_id, "team": team_id, "day": day, "none": 0}
            if all(getattr(narrowed, name) == keys[name] for name in narrowed.by):
                booked += Sums(*cells)
                yield keys[group_by], Sums(*cells)
        if not narrowed.by:
            whole = sum((Sums(*cells) for _, cells in self._tables.rows(DAYS, (), scope)), Sums())
            left = Sums(*(of_all - of_some for of_all, of_some in zip(cells_in(whole), cells_in(booked), strict=True)))
            if left.entries:
                yield "", left

    def _by_rows(self, group_by: GroupBy, scope: Scope, narrowed: Narrowed) -> Iterable[tuple[object, Sums]]:
        self._catch_up()
        simulated, beside = int(scope.simulated), cells_of(narrowed)
        spans: Sequence[tuple[float, float]] = ((scope.since, scope.until),)
        found: list[tuple[object, ...]] = []
        if group_by in BY_SESSION and narrowed.by <= {"session"}:
            days = days_of(scope.since, scope.until)
            spans = days.partly
            query = self._queries.session_groups(group_by, narrowed)
            found += self._fetch(query, (days.first, days.behind, simulated, *beside))
        if spans:
            arm: tuple[Cell, ...] = (*chain.from_iterable(spans), simulated)
            query = self._queries.groups(group_by, narrowed, spans=len(spans))
            found += self._fetch(query, (*arm * len(ARMS[DAYS.name]), *beside))
        return ((key, Sums(*sums)) for key, *sums in found)  # type: ignore[arg-type] # as the query says

    def failures(self, scope: Scope = EVERYTHING) -> dict[str, int]:
        found: dict[str, int] = {}
        for (outcome,), (calls, *_) in self._tables.rows(OUTCOME_DAYS, ("outcome",), scope):
            if outcome != "completed":
                found[str(outcome)] = found.get(str(outcome), 0) + calls
        return found

    def latencies(self, scope: Scope = EVERYTHING) -> dict[str, dict[int, int]]:
        self._catch_up()
        found: dict[str, dict[int, int]] = {}
        for model, latency_ms, calls in self._fetch(self._queries.latencies, _within(scope)):
            found.setdefault(str(model), {})[_whole(latency_ms)] = _whole(calls)
        return found

    def sized(self, limits: Sequence[int], scope: Scope = EVERYTHING) -> tuple[Sized, ...]:
        self._catch_up()
        found = self._fetch(self._queries.sized(limits), _within(scope))
        sized = [
            Sized(str(model), _whole(sizes), _whole(calls), Usage(*map(_whole, took)))
            for model, sizes, calls, *took in found
        ]
        return tuple(sorted(sized, key=lambda one: (one.model, one.sizes)))

    def broken(
        self,
        scope: Scope = EVERYTHING,
        *,
        kind: VerdictKind | None = None,
        component: str | None = None,
        limit: int,
        skip: int,
    ) -> tuple[BrokenCall, ...]:
        self._catch_up()
        query = self._queries.broken(kind=kind is not None, component=component is not None)
        told = [one for one in (kind, component) if one is not None]
        return tuple(map(_broken, self._fetch(query, (*_within(scope), *told, limit, skip))))

    def skill_loads(self, scope: Scope = EVERYTHING) -> tuple[SkillLoad, ...]:
        played = () if scope.simulated else (PLAYED,)
        query = self._queries.skill_loads(simulated=scope.simulated)
        return tuple(
            SkillLoad(event.session_id, event.at, it.skill_id, it.load_reason, it.load_size_tokens)
            for event in _readable(self._fetch(query, (scope.since, scope.until, *played)))
            if isinstance(it := event.payload, SkillLoaded)
        )

    def session_costs(
        self, *, order: FiguresOrder, limit: int, skip: int, simulated: bool = False
    ) -> tuple[SessionCost, ...]:
        self._catch_up()
        query = self._queries.session_page(order, simulated=simulated)
        found = self._fetch(query, (*(() if simulated else (PLAYED,)), limit, skip))
        ids = [str(columns[0]) for columns in found]
        if not ids:
            return ()
        models = {str(id): model for id, model in self._fetch(self._queries.last_models(len(ids)), ids)}
        turns = {str(id): count for id, count in self._fetch(self._queries.turns(len(ids)), ids)}
        paths: dict[str, str | None] = {}
        for event in _readable(self._fetch(self._queries.started(len(ids)), ids)):
            if isinstance(event.payload, SessionStarted):
                paths.setdefault(event.session_id, event.payload.workspace_path)
        costs = []
        for *columns, spent in found:
            row = session_of(columns)
            model, ended = str(models.get(row.id, row.model)), _whole(turns.get(row.id, 0))
            costs.append(SessionCost(row, dollars(_whole(spent)), model, ended, paths.get(row.id)))
        return tuple(costs)

    def turn(self, turn_id: str) -> tuple[Event, ...]:
        for place, session_id in self._fetch(self._queries.turn, (turn_id,)):
            return tuple(self._until_next(turn_id, str(session_id), _whole(place)))
        return ()

    def _until_next(self, turn_id: str, session_id: str, place: int) -> Iterable[Event]:
        """Turns of a session follow one another."""
        while batch := self._fetch(self._queries.behind, (session_id, place, TURN_BATCH_EVENTS)):
            place = _whole(batch[-1][0]) + 1
            for event in _readable(columns for _, *columns in batch):
                if isinstance(event.payload, TurnStarted) and event.id != turn_id:
                    return
                if turn_id in (event.id, event.turn_id):
                    yield event


def _names_accounts(narrowed: Narrowed) -> bool:
    """Whether it is narrowed down to accounts alone, and to none that is nobody's."""
    return narrowed.by <= {"gateway_key", "user", "team"} and all(cells_of(narrowed))


def _within(scope: Scope) -> tuple[Cell, ...]:
    return scope.since, scope.until, int(scope.simulated)


def _readable(found: Iterable[Sequence[object]]) -> Iterable[Event]:
    for columns in found:
        # A newer version's event is of no use to this one, and no reason to stop.
        with suppress(StoreError):
            yield event_of(columns)


def _broken(columns: Sequence[object]) -> BrokenCall:
    session_id, name, number, at, model, verdict = columns
    try:
        found = _verdict(str(verdict))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise StoreError("the table of calls is damaged: `holdfast db rebuild` makes it anew from the log") from error
    assert isinstance(at, float)
    return BrokenCall(str(session_id), None if name is None else str(name), _whole(number), at, str(model), found)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
