"""Builds the cost report of a store: spending, savings, and the causes of cache misses."""

import datetime
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.ledger.analytics.queries import (
    PAGE_MAX,
    Amounts,
    CostQueries,
    DayAmounts,
    LedgerScope,
    MissCause,
    SessionAmounts,
    UnpricedUsage,
)

# Up to this many days (ten years), days without calls are filled in; a longer range means that a clock was wrong.
DAYS_MAX = 3_660


class DaySpending(msgspec.Struct, frozen=True):
    date: datetime.date
    spent_usd: Decimal


class CostReport(msgspec.Struct, frozen=True):
    """Sessions and causes with the largest loss first; days in order, including those without calls.

    `unreadable_calls` were forwarded and charged, but their responses could not be decoded: their usage is an estimate.
    `failures` counts the other calls that failed, by error class, the most frequent first.
    `unpriced` calls are counted with their tokens, but no amount of money contains them.
    """

    total: Amounts
    causes: tuple[MissCause, ...]
    sessions: tuple[SessionAmounts, ...]
    days: tuple[DaySpending, ...]
    unreadable_calls: int = 0
    failures: dict[str, int] = {}
    unpriced: tuple[UnpricedUsage, ...] = ()


def build_report(queries: CostQueries, scope: LedgerScope) -> CostReport:
    """Everything in the scope. Earlier calls still influence verdicts but are not counted."""
    days = tuple(_fill_days(queries.days(scope)))
    return CostReport(
        queries.totals(scope),
        queries.causes(scope),
        tuple(iter_session_amounts(queries, scope)),
        days,
        count_unreadable_calls(queries, scope),
        _count_failures(queries, scope),
        queries.unpriced(scope),
    )


def count_unreadable_calls(queries: CostQueries, scope: LedgerScope) -> int:
    return sum(outcome.calls for outcome in queries.outcomes(scope) if outcome.outcome == "unreadable")


def _count_failures(queries: CostQueries, scope: LedgerScope) -> dict[str, int]:
    failures: Counter[str] = Counter()
    for outcome in queries.outcomes(scope):
        if outcome.outcome not in ("completed", "unreadable"):
            failures[outcome.outcome] += outcome.calls
    return dict(failures.most_common())


def iter_session_amounts(queries: CostQueries, scope: LedgerScope) -> Iterable[SessionAmounts]:
    """Sessions with the largest loss first, read page by page."""
    offset = 0
    while page := queries.session_amounts(scope, order="lost", limit=PAGE_MAX, offset=offset):
        yield from page
        offset += len(page)


def _fill_days(day_amounts: tuple[DayAmounts, ...]) -> Iterable[DaySpending]:
    """Every day from the first to the last, unless the range exceeds `DAYS_MAX`."""
    spent = {day.date: day.amounts.spent_usd for day in day_amounts}
    first, last = (day_amounts[0].date, day_amounts[-1].date) if day_amounts else (datetime.date.max, datetime.date.min)
    if (last - first).days < DAYS_MAX:
        for number in range((last - first).days + 1):
            spent.setdefault(first + datetime.timedelta(days=number), Decimal(0))
    return (DaySpending(date, spent[date]) for date in sorted(spent))
