"""What the sessions of a store have spent and saved, and what broke their caches."""

import datetime
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.ledger.tables import PAGE_MAX, Amounts, Cause, DayAmounts, Scope, SessionAmounts, Tables

DAYS_MAX = 3_660
"""Days between which none is left out."""


class Day(msgspec.Struct, frozen=True):
    date: datetime.date
    spent_usd: Decimal


class Report(msgspec.Struct, frozen=True):
    """Sessions that lost most stand first, causes that cost most too; days in order, those without calls included."""

    total: Amounts
    causes: tuple[Cause, ...]
    sessions: tuple[SessionAmounts, ...]
    days: tuple[Day, ...]


def report_of(tables: Tables, scope: Scope) -> Report:
    """Everything from a time on; what came before it is judged, and not counted."""
    days = tuple(_in_order(tables.days(scope)))
    return Report(tables.totals(scope), tables.causes(scope), tuple(all_sessions(tables, scope)), days)


def all_sessions(tables: Tables, scope: Scope) -> Iterable[SessionAmounts]:
    """Those that lost most first, a page at a time."""
    offset = 0
    while page := tables.session_amounts(scope, order="lost", limit=PAGE_MAX, offset=offset):
        yield from page
        offset += len(page)


def _in_order(found: tuple[DayAmounts, ...]) -> Iterable[Day]:
    """Every day from the first to the last, unless a clock was wrong by years."""
    spent = {day.date: day.amounts.spent_usd for day in found}
    first, last = (found[0].date, found[-1].date) if found else (datetime.date.max, datetime.date.min)
    if (last - first).days < DAYS_MAX:
        for number in range((last - first).days + 1):
            spent.setdefault(first + datetime.timedelta(days=number), Decimal(0))
    return (Day(date, spent[date]) for date in sorted(spent))
