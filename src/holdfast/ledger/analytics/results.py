"""Cost queries over all sessions, from rows of roll-up sums, wherever they are stored."""

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol, get_args

from holdfast.errors import UserError
from holdfast.events.log import SessionRow
from holdfast.ledger.analytics.queries import (
    PAGE_MAX,
    Amounts,
    CallOutcome,
    DayAmounts,
    LedgerScope,
    MissCause,
    ModelAmounts,
    SessionAmounts,
    SessionOrder,
    UnpricedUsage,
)
from holdfast.ledger.cache.verdicts import VerdictKind
from holdfast.ledger.money import to_dollars
from holdfast.ledger.postings import (
    DAYS,
    OUTCOME_DAYS,
    SESSION_DAYS,
    VERDICT_DAYS,
    Key,
    OutcomeSums,
    RollUp,
    Sums,
    VerdictSums,
)

RollUpRows = Iterable[tuple[Key, tuple[int, ...]]]
FULL_SCOPE = LedgerScope()
SESSIONS_MAX = 2**62  # No limit: more than any table has, and within every engine's integers.
VERDICT_KINDS: dict[object, VerdictKind] = {kind: kind for kind in get_args(VerdictKind)}


class RollUpSource(Protocol):
    """Supplies roll-up rows. A key may occur more than once; its sums are then added."""

    def rows(self, table: RollUp, keys: tuple[str, ...], scope: LedgerScope) -> RollUpRows: ...

    def sessions(
        self, scope: LedgerScope, *, order: SessionOrder, limit: int, offset: int
    ) -> Sequence[tuple[SessionRow, Sums]]:
        """Sessions that made a call or spent anything."""

    def session_rows(
        self, scope: LedgerScope, *, order: SessionOrder, limit: int, calls_only: bool
    ) -> Sequence[SessionRow]:
        """The same without the sums."""

    def count_sessions(self, scope: LedgerScope, *, calls_only: bool) -> int: ...

    def unpriced(self, scope: LedgerScope) -> tuple[UnpricedUsage, ...]:
        """As `CostQueries.unpriced`."""

    def worst_verdicts(self, session_ids: Sequence[str], scope: LedgerScope) -> dict[str, VerdictKind]:
        """The verdict of the call that lost most (the first, if several did); sessions without a loss are left out."""


class CostQueries:
    """Every result is what the events add up to at the time of the query."""

    def __init__(self, source: RollUpSource) -> None:
        self._source = source

    def totals(self, scope: LedgerScope = FULL_SCOPE) -> Amounts:
        table = DAYS if scope.session_id is None else SESSION_DAYS
        return build_amounts(sum((Sums(*sums) for _, sums in self._source.rows(table, (), scope)), Sums()))

    def days(self, scope: LedgerScope = FULL_SCOPE) -> tuple[DayAmounts, ...]:
        """Days in order; days without postings are left out."""
        sums_by_day = self._sum_by_key(DAYS, ("day",), scope)
        return tuple(
            DayAmounts(datetime.date.fromisoformat(str(day)), build_amounts(Sums(*sums)))
            for (day,), sums in sorted(sums_by_day.items())
        )

    def models(self, scope: LedgerScope = FULL_SCOPE) -> tuple[ModelAmounts, ...]:
        """The most expensive first."""
        sums_by_model = self._sum_by_key(DAYS, ("provider", "model"), scope)
        models = [
            ModelAmounts(str(provider), str(model), build_amounts(Sums(*sums)))
            for (provider, model), sums in sums_by_model.items()
        ]
        return tuple(sorted(models, key=lambda row: (-row.amounts.spent_usd, row.provider, row.model)))

    def causes(self, scope: LedgerScope = FULL_SCOPE) -> tuple[MissCause, ...]:
        """The most expensive first."""
        return tuple(cause for cause in self.verdicts(scope) if cause.calls)

    def unpriced(self, scope: LedgerScope = FULL_SCOPE) -> tuple[UnpricedUsage, ...]:
        """By session and model, in that order."""
        return self._source.unpriced(scope)

    def verdicts(self, scope: LedgerScope = FULL_SCOPE) -> tuple[MissCause, ...]:
        """All verdicts, including those without a loss; the most expensive first."""
        causes = []
        for (kind, component), sums in self._sum_by_key(VERDICT_DAYS, ("kind", "component"), scope).items():
            total = VerdictSums(*sums)
            amounts = (total.losses, total.tokens, to_dollars(total.lost), total.calls)
            causes.append(MissCause(VERDICT_KINDS[kind], str(component) or None, *amounts))
        return tuple(sorted(causes, key=lambda cause: (-cause.lost_usd, cause.kind, cause.component or "")))

    def session_amounts(
        self, scope: LedgerScope = FULL_SCOPE, *, order: SessionOrder = "lost", limit: int = PAGE_MAX, offset: int = 0
    ) -> tuple[SessionAmounts, ...]:
        """One page, at most `PAGE_MAX`, of the sessions that spent anything."""
        _check_page_range(limit, offset)
        sessions = self._source.sessions(scope, order=order, limit=limit, offset=offset)
        worst = self._source.worst_verdicts([row.id for row, _ in sessions], scope)
        return tuple(
            SessionAmounts(row.id, row.name, row.model, row.last_event_at, build_amounts(sums), worst.get(row.id))
            for row, sums in sessions
        )

    def list_sessions(
        self,
        scope: LedgerScope = FULL_SCOPE,
        *,
        order: SessionOrder = "spent",
        limit: int = SESSIONS_MAX,
        calls_only: bool = False,
    ) -> tuple[SessionRow, ...]:
        """The sessions that spent anything, in one query however many there are; by default the most expensive first.

        With `calls_only`, without sessions that only paid for pings and caches.
        """
        return tuple(self._source.session_rows(scope, order=order, limit=limit, calls_only=calls_only))

    def count_sessions(self, scope: LedgerScope = FULL_SCOPE, *, calls_only: bool = False) -> int:
        """How many these are."""
        return self._source.count_sessions(scope, calls_only=calls_only)

    def outcomes(self, scope: LedgerScope = FULL_SCOPE) -> tuple[CallOutcome, ...]:
        """The most frequent first."""
        rows_by_key: dict[Key, list[tuple[int, OutcomeSums]]] = {}
        keys = ("provider", "model", "outcome", "latency_bits")
        for (*key, bits), sums in sorted(self._sum_by_key(OUTCOME_DAYS, keys, scope).items()):
            rows_by_key.setdefault(tuple(key), []).append((int(bits), OutcomeSums(*sums)))
        outcomes = [_build_outcome(key, rows) for key, rows in rows_by_key.items()]
        return tuple(sorted(outcomes, key=lambda row: (-row.calls, row.provider, row.model, row.outcome)))

    def _sum_by_key(self, table: RollUp, keys: tuple[str, ...], scope: LedgerScope) -> dict[Key, tuple[int, ...]]:
        totals: dict[Key, tuple[int, ...]] = {}
        for key, sums in self._source.rows(table, keys, scope):
            before = totals.get(key)
            totals[key] = sums if before is None else tuple(map(int.__add__, before, sums))
        return totals


def build_amounts(sums: Sums) -> Amounts:
    return Amounts(
        calls=sums.calls,
        hits=sums.hits,
        usage=sums.usage,
        spent_usd=to_dollars(sums.spent),
        uncached_usd=to_dollars(sums.uncached),
        lost_usd=to_dollars(sums.lost),
        latency_ms=sums.latency_ms,
        stable_write_tokens=sums.stable_written,
    )


def _check_page_range(limit: int, offset: int) -> None:
    if not 0 < limit <= PAGE_MAX or offset < 0:
        raise UserError(f"limit must be 1 to {PAGE_MAX} and offset 0 or more, not limit {limit} and offset {offset}")


def _build_outcome(key: Key, rows: list[tuple[int, OutcomeSums]]) -> CallOutcome:
    """`rows` are sorted by the number of bits of their latency."""
    provider, model, outcome = map(str, key)
    calls = sum(sums.calls for _, sums in rows)
    return CallOutcome(
        provider=provider,
        model=model,
        outcome=outcome,
        calls=calls,
        retries=sum(sums.retries for _, sums in rows),
        latency_ms_mean=sum(sums.latency_ms for _, sums in rows) / calls,
        # Ranks from 1: the median is call ceil(n / 2), the 95th percentile is call ceil(0.95 n) = ceil(19 n / 20).
        latency_ms_median_under=_latency_bound_ms(rows, (calls + 1) // 2),
        latency_ms_p95_under=_latency_bound_ms(rows, -(-calls * 19 // 20)),
    )


def _latency_bound_ms(rows: list[tuple[int, OutcomeSums]], rank: int) -> int:
    """The smallest power of two, in milliseconds, under which the fastest `rank` calls stay."""
    # The roll-up keeps only the number of bits b of a latency, which is then in [2**(b - 1), 2**b) ms.
    calls_upto = accumulate(sums.calls for _, sums in rows)
    return int(2 ** next(bits for (bits, _), calls in zip(rows, calls_upto, strict=True) if calls >= rank))


def count_unreadable_calls(queries: CostQueries, scope: LedgerScope, model: str = "") -> int:
    """Calls that were forwarded and charged, but whose responses could not be decoded: their usage is an estimate.

    Only those whose model's name contains `model`, which is in lower case.
    """
    return sum(
        outcome.calls
        for outcome in queries.outcomes(scope)
        if outcome.outcome == "unreadable" and model in outcome.model.lower()
    )


def count_failures(queries: CostQueries, scope: LedgerScope, model: str = "") -> dict[str, int]:
    """The calls that failed, unreadable ones excepted, by error class; the most frequent first; `model` as above."""
    failures: Counter[str] = Counter()
    for outcome in queries.outcomes(scope):
        if outcome.outcome not in ("completed", "unreadable") and model in outcome.model.lower():
            failures[outcome.outcome] += outcome.calls
    return dict(failures.most_common())
