"""What roll-ups say, whoever keeps them: rows of sums in, the answers of `Tables` out."""

import datetime
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol, get_args

from holdfast.errors import UserError
from holdfast.events.log import SessionRow
from holdfast.ledger.books import Entry
from holdfast.ledger.money import dollars
from holdfast.ledger.postings import Sums
from holdfast.ledger.rollups import DAYS, OUTCOME_DAYS, SESSION_DAYS, VERDICT_DAYS, Ended, Given, Key, RollUp
from holdfast.ledger.tables import (
    PAGE_MAX,
    Amounts,
    Cause,
    DayAmounts,
    ModelAmounts,
    Outcome,
    Scope,
    SessionAmounts,
    SessionOrder,
)
from holdfast.ledger.verdicts import VerdictKind

Rows = Iterable[tuple[Key, tuple[int, ...]]]

EVERYTHING = Scope()

KINDS: dict[object, VerdictKind] = {kind: kind for kind in get_args(VerdictKind)}


class Source(Protocol):
    """Where rows come from; a key may come more than once, and its sums are to be added."""

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: Scope) -> Rows: ...

    def sessions(
        self, scope: Scope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        """Sessions that have made a call or spent anything."""

    def worst(self, session_ids: Sequence[str], scope: Scope) -> dict[str, VerdictKind]:
        """The verdict of the call that lost most, the first of them; nothing for a session that has lost nothing."""

    def calls(self, session_id: str, *, after: int, limit: int) -> Sequence[Entry]: ...


class Answers:
    """The `Tables` of a source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def totals(self, scope: Scope = EVERYTHING) -> Amounts:
        table = DAYS if scope.session_id is None else SESSION_DAYS
        return amounts_of(sum((Sums(*sums) for _, sums in self._source.rows(table, (), scope)), Sums()))

    def days(self, scope: Scope = EVERYTHING) -> tuple[DayAmounts, ...]:
        found = self._added(DAYS, ("day",), scope)
        return tuple(
            DayAmounts(datetime.date.fromisoformat(str(day)), amounts_of(Sums(*sums)))
            for (day,), sums in sorted(found.items())
        )

    def models(self, scope: Scope = EVERYTHING) -> tuple[ModelAmounts, ...]:
        found = self._added(DAYS, ("provider", "model"), scope)
        models = [
            ModelAmounts(str(provider), str(model), amounts_of(Sums(*sums)))
            for (provider, model), sums in found.items()
        ]
        return tuple(sorted(models, key=lambda one: (-one.amounts.spent_usd, one.provider, one.model)))

    def causes(self, scope: Scope = EVERYTHING) -> tuple[Cause, ...]:
        causes = []
        for (kind, component), sums in self._added(VERDICT_DAYS, ("kind", "component"), scope).items():
            given = Given(*sums)
            if given.losses:
                at_fault = str(component) or None
                causes.append(Cause(KINDS[kind], at_fault, given.losses, given.tokens, dollars(given.lost)))
        return tuple(sorted(causes, key=lambda cause: (-cause.lost_usd, cause.kind, cause.component or "")))

    def session_amounts(
        self, scope: Scope = EVERYTHING, *, order: SessionOrder = "lost", limit: int = PAGE_MAX, offset: int = 0
    ) -> tuple[SessionAmounts, ...]:
        _check_page(limit, offset)
        found = self._source.sessions(scope, order=order, limit=limit, offset=offset)
        worst = self._source.worst([row.id for row, _ in found], scope)
        return tuple(
            SessionAmounts(row.id, row.name, row.model, row.last_event_at, amounts_of(sums), worst.get(row.id))
            for row, sums in found
        )

    def session_calls(self, session_id: str, *, after: int = 0, limit: int = PAGE_MAX) -> tuple[Entry, ...]:
        _check_page(limit, after)
        return tuple(self._source.calls(session_id, after=after, limit=limit))

    def outcomes(self, scope: Scope = EVERYTHING) -> tuple[Outcome, ...]:
        found: dict[Key, list[tuple[int, Ended]]] = {}
        keys = ("provider", "model", "outcome", "latency_bits")
        for (*key, bits), sums in sorted(self._added(OUTCOME_DAYS, keys, scope).items()):
            found.setdefault(tuple(key), []).append((int(bits), Ended(*sums)))
        outcomes = [_outcome(key, parts) for key, parts in found.items()]
        return tuple(sorted(outcomes, key=lambda one: (-one.calls, one.provider, one.model, one.outcome)))

    def _added(self, table: RollUp, keys: tuple[str, ...], scope: Scope) -> dict[Key, tuple[int, ...]]:
        found: dict[Key, tuple[int, ...]] = {}
        for key, sums in self._source.rows(table, keys, scope):
            before = found.get(key)
            found[key] = sums if before is None else tuple(map(int.__add__, before, sums))
        return found


def amounts_of(sums: Sums) -> Amounts:
    return Amounts(sums.calls, sums.hits, sums.usage, dollars(sums.spent), dollars(sums.uncached), dollars(sums.lost))


def _check_page(limit: int, offset: int) -> None:
    if not 0 < limit <= PAGE_MAX or offset < 0:
        raise UserError(f"a page has 1 to {PAGE_MAX} rows and begins at 0 or later, not {limit} from {offset} on")


def _outcome(key: Key, parts: list[tuple[int, Ended]]) -> Outcome:
    """Parts are in the order of their bits."""
    provider, model, outcome = map(str, key)
    calls = sum(ended.calls for _, ended in parts)
    return Outcome(
        provider=provider,
        model=model,
        outcome=outcome,
        calls=calls,
        retries=sum(ended.retries for _, ended in parts),
        latency_ms_mean=sum(ended.latency_ms for _, ended in parts) / calls,
        latency_ms_median_under=_under(parts, (calls + 1) // 2),
        latency_ms_p95_under=_under(parts, -(-calls * 19 // 20)),
    )


def _under(parts: list[tuple[int, Ended]], rank: int) -> int:
    """The power of two that so many calls, counted from the fastest, stay under."""
    seen = accumulate(ended.calls for _, ended in parts)
    return int(2 ** next(bits for (bits, _), reached in zip(parts, seen, strict=True) if reached >= rank))
