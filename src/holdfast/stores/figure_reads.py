"""Analytics queries on a database: from roll-ups where possible, otherwise from call rows, never from the whole log."""

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
# Which groupings each roll-up can answer by itself.
BY_DAY: frozenset[str] = frozenset({"model", "provider", "day", "none"})
BY_ACCOUNT: frozenset[str] = frozenset({"gateway_key", "user", "team", "day", "none"})
BY_SESSION: frozenset[str] = frozenset({"session", "parent_session", "is_worker", "day", "none"})

_decode_verdict = msgspec.json.Decoder(Verdict).decode


class FigureReads:
    def __init__(self, fetch: Fetch, queries: TableQueries, catch_up: Callable[[], None]) -> None:
        self._fetch = fetch
        self._queries = FigureQueries(queries)
        self._tables = TableReads(fetch, queries, catch_up)
        self._catch_up = catch_up

    def groups(self, group_by: GroupBy, scope: Scope = EVERYTHING, narrowed: Narrowed = ALL) -> tuple[Group, ...]:
        """From roll-ups if they distinguish such groups, otherwise from the rows."""
        if group_by in BY_DAY and narrowed.workers and narrowed.by <= {"model", "provider"}:
            rows = self._group_days(group_by, scope, narrowed)
        elif group_by in BY_ACCOUNT and narrowed.workers and _filters_accounts(narrowed):
            rows = self._group_accounts(group_by, scope, narrowed)
        else:
            rows = self._group_rows(group_by, scope, narrowed)
        sums_by_key: dict[object, Sums] = {0: Sums()} if group_by == "none" else {}
        for key, sums in rows:
            sums_by_key[key] = sums_by_key.get(key, Sums()) + sums
        return tuple(Group(name_of(group_by, key), amounts_of(sums)) for key, sums in sums_by_key.items())

    def _group_days(self, group_by: GroupBy, scope: Scope, filter_: Narrowed) -> Iterable[tuple[object, Sums]]:
        for (provider, model, day), sums in self._tables.rows(DAYS, ("provider", "model", "day"), scope):
            if filter_.model in (None, model) and filter_.provider in (None, provider):
                keys: dict[str, object] = {"provider": provider, "model": model, "day": day, "none": 0}
                yield keys[group_by], Sums(*sums)

    def _group_accounts(self, group_by: GroupBy, scope: Scope, filter_: Narrowed) -> Iterable[tuple[object, Sums]]:
        """Filtered, or with the remainder of the totals as the group without an account."""
        with_account = Sums()
        columns = ("day", "key_id", "user_id", "team_id")
        for (day, key_id, user_id, team_id), cells in self._tables.rows(ACCOUNT_DAYS, columns, scope):
            keys: dict[str, object] = {"gateway_key": key_id, "user": user_id, "team": team_id, "day": day, "none": 0}
            if all(getattr(filter_, name) == keys[name] for name in filter_.by):
                with_account += Sums(*cells)
                yield keys[group_by], Sums(*cells)
        if not filter_.by:
            total = sum((Sums(*cells) for _, cells in self._tables.rows(DAYS, (), scope)), Sums())
            remainder = Sums(
                *(
                    total_cell - account_cell
                    for total_cell, account_cell in zip(cells_in(total), cells_in(with_account), strict=True)
                )
            )
            if remainder.entries:
                yield "", remainder

    def _group_rows(self, group_by: GroupBy, scope: Scope, filter_: Narrowed) -> Iterable[tuple[object, Sums]]:
        self._catch_up()
        simulated, filter_cells = int(scope.simulated), cells_of(filter_)
        spans: Sequence[tuple[float, float]] = ((scope.since, scope.until),)
        rows: list[tuple[object, ...]] = []
        if group_by in BY_SESSION and filter_.by <= {"session"}:
            days = days_of(scope.since, scope.until)
            spans = days.partly
            query = self._queries.session_groups(group_by, filter_)
            rows += self._fetch(query, (days.first, days.behind, simulated, *filter_cells))
        if spans:
            table_parameters: tuple[Cell, ...] = (*chain.from_iterable(spans), simulated)
            query = self._queries.groups(group_by, filter_, spans=len(spans))
            rows += self._fetch(query, (*table_parameters * len(ARMS[DAYS.name]), *filter_cells))
        return ((key, Sums(*sums)) for key, *sums in rows)  # type: ignore[arg-type] # the query casts them to bigint

    def failures(self, scope: Scope = EVERYTHING) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (outcome,), (calls, *_) in self._tables.rows(OUTCOME_DAYS, ("outcome",), scope):
            if outcome != "completed":
                counts[str(outcome)] = counts.get(str(outcome), 0) + calls
        return counts

    def latencies(self, scope: Scope = EVERYTHING) -> dict[str, dict[int, int]]:
        self._catch_up()
        counts_by_model: dict[str, dict[int, int]] = {}
        for model, latency_ms, calls in self._fetch(self._queries.latencies, _scope_parameters(scope)):
            counts_by_model.setdefault(str(model), {})[_as_int(latency_ms)] = _as_int(calls)
        return counts_by_model

    def sized(self, limits: Sequence[int], scope: Scope = EVERYTHING) -> tuple[Sized, ...]:
        self._catch_up()
        rows = self._fetch(self._queries.sized(limits), _scope_parameters(scope))
        sized = [
            Sized(str(model), _as_int(sizes), _as_int(calls), Usage(*map(_as_int, usage)))
            for model, sizes, calls, *usage in rows
        ]
        return tuple(sorted(sized, key=lambda row: (row.model, row.sizes)))

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
        filter_cells = [value for value in (kind, component) if value is not None]
        return tuple(
            map(_build_broken_call, self._fetch(query, (*_scope_parameters(scope), *filter_cells, limit, skip)))
        )

    def skill_loads(self, scope: Scope = EVERYTHING) -> tuple[SkillLoad, ...]:
        exclusion = () if scope.simulated else (PLAYED,)
        query = self._queries.skill_loads(simulated=scope.simulated)
        return tuple(
            SkillLoad(event.session_id, event.at, payload.skill_id, payload.load_reason, payload.load_size_tokens)
            for event in _decode_events(self._fetch(query, (scope.since, scope.until, *exclusion)))
            if isinstance(payload := event.payload, SkillLoaded)
        )

    def session_costs(
        self, *, order: FiguresOrder, limit: int, skip: int, simulated: bool = False
    ) -> tuple[SessionCost, ...]:
        self._catch_up()
        query = self._queries.session_page(order, simulated=simulated)
        rows = self._fetch(query, (*(() if simulated else (PLAYED,)), limit, skip))
        ids = [str(columns[0]) for columns in rows]
        if not ids:
            return ()
        models = {str(id): model for id, model in self._fetch(self._queries.last_models(len(ids)), ids)}
        turns = {str(id): count for id, count in self._fetch(self._queries.turns(len(ids)), ids)}
        paths: dict[str, str | None] = {}
        for event in _decode_events(self._fetch(self._queries.started(len(ids)), ids)):
            if isinstance(event.payload, SessionStarted):
                paths.setdefault(event.session_id, event.payload.workspace_path)
        costs = []
        for *columns, spent in rows:
            row = session_of(columns)
            model, turn_count = str(models.get(row.id, row.model)), _as_int(turns.get(row.id, 0))
            costs.append(SessionCost(row, dollars(_as_int(spent)), model, turn_count, paths.get(row.id)))
        return tuple(costs)

    def turn(self, turn_id: str) -> tuple[Event, ...]:
        for seq, session_id in self._fetch(self._queries.turn, (turn_id,)):
            return tuple(self._events_of_turn(turn_id, str(session_id), _as_int(seq)))
        return ()

    def _events_of_turn(self, turn_id: str, session_id: str, seq: int) -> Iterable[Event]:
        """Turns of a session do not overlap, so a turn ends where the next one starts."""
        while batch := self._fetch(self._queries.behind, (session_id, seq, TURN_BATCH_EVENTS)):
            seq = _as_int(batch[-1][0]) + 1
            for event in _decode_events(columns for _, *columns in batch):
                if isinstance(event.payload, TurnStarted) and event.id != turn_id:
                    return
                if turn_id in (event.id, event.turn_id):
                    yield event


def _filters_accounts(filter_: Narrowed) -> bool:
    """Whether the filter names accounts only, and none of them is empty: those are not in the roll-up."""
    return filter_.by <= {"gateway_key", "user", "team"} and all(cells_of(filter_))


def _scope_parameters(scope: Scope) -> tuple[Cell, ...]:
    return scope.since, scope.until, int(scope.simulated)


def _decode_events(rows: Iterable[Sequence[object]]) -> Iterable[Event]:
    for columns in rows:
        # Skip events of a newer version: this one cannot use them.
        with suppress(StoreError):
            yield event_of(columns)


def _build_broken_call(columns: Sequence[object]) -> BrokenCall:
    session_id, name, number, at, model, verdict = columns
    try:
        decoded = _decode_verdict(str(verdict))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise StoreError("the table of calls is damaged: `holdfast db rebuild` rebuilds it from the log") from error
    assert isinstance(at, float)
    return BrokenCall(str(session_id), None if name is None else str(name), _as_int(number), at, str(model), decoded)


def _as_int(value: object) -> int:
    assert isinstance(value, int)
    return value
