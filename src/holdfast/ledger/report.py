"""What the sessions of a store have spent and saved, and what broke their caches."""

import datetime
from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, utc_date
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.ledger.books import Entry, entries
from holdfast.ledger.calls import keeping_cost_usd, pinging_cost_usd
from holdfast.ledger.verdicts import Verdict, VerdictKind

_NOTHING = Decimal(0)


class Amounts(msgspec.Struct, frozen=True):
    """`uncached_usd` is what the same calls would have cost without a cache; calls without a price count as they are.

    `hits` are calls that read anything at all; how much of the prompts was read is `usage.read_share`.
    """

    calls: int = 0
    hits: int = 0
    usage: Usage = Usage()
    spent_usd: Decimal = _NOTHING
    uncached_usd: Decimal = _NOTHING
    lost_usd: Decimal = _NOTHING

    @property
    def saved_usd(self) -> Decimal:
        return self.uncached_usd - self.spent_usd

    @property
    def hit_rate(self) -> float:
        return self.hits / self.calls if self.calls else 0.0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            self.calls + other.calls,
            self.hits + other.hits,
            self.usage + other.usage,
            self.spent_usd + other.spent_usd,
            self.uncached_usd + other.uncached_usd,
            self.lost_usd + other.lost_usd,
        )


class Cause(msgspec.Struct, frozen=True):
    kind: VerdictKind
    component: str | None
    calls: int
    tokens: int
    lost_usd: Decimal


class SessionReport(msgspec.Struct, frozen=True):
    id: str
    name: str | None
    model: str
    last_event_at: float
    amounts: Amounts
    worst: VerdictKind | None


class Day(msgspec.Struct, frozen=True):
    date: datetime.date
    spent_usd: Decimal


class Report(msgspec.Struct, frozen=True):
    """Sessions that lost most stand first, causes that cost most too; days in order, those without calls included."""

    total: Amounts
    causes: tuple[Cause, ...]
    sessions: tuple[SessionReport, ...]
    days: tuple[Day, ...]


class Reporter:
    """Grows by one session after the other; holds no events."""

    def __init__(self, models: Models, *, since: float = 0.0) -> None:
        self._models = models
        self._since = since
        self._sessions: list[SessionReport] = []
        self._causes: dict[tuple[VerdictKind, str | None], Cause] = {}
        self._days: dict[datetime.date, Decimal] = {}

    def add(self, row: SessionRow, events: Sequence[Event]) -> None:
        """Everything of a session since the day asked for; what came before it is judged, and not counted."""
        recent = [event for event in events if event.at >= self._since]
        total = Amounts(spent_usd=(extra := keeping_cost_usd(recent) + pinging_cost_usd(recent)), uncached_usd=extra)
        worst: Verdict | None = None
        for entry in entries(events, self._models):
            call, verdict = entry.record, entry.verdict
            if call.at < self._since:
                continue
            total += _amounts(entry)
            day = utc_date(call.at)
            self._days[day] = self._days.get(day, _NOTHING) + call.cost_usd
            if verdict is not None and verdict.lost_usd:
                self._blame(verdict)
                worst = verdict if worst is None or verdict.lost_usd > worst.lost_usd else worst
        if total.calls or total.spent_usd:
            kind = worst.kind if worst else None
            self._sessions.append(SessionReport(row.id, row.name, row.model, row.last_event_at, total, kind))

    def _blame(self, verdict: Verdict) -> None:
        key = (verdict.kind, verdict.component)
        before = self._causes.get(key, Cause(*key, 0, 0, _NOTHING))
        self._causes[key] = Cause(
            *key, before.calls + 1, before.tokens + verdict.lost_tokens, before.lost_usd + verdict.lost_usd
        )

    def report(self) -> Report:
        sessions = sorted(self._sessions, key=lambda one: (-one.amounts.lost_usd, -one.amounts.spent_usd, one.id))
        causes = sorted(self._causes.values(), key=lambda cause: (-cause.lost_usd, cause.kind, cause.component or ""))
        total = sum((one.amounts for one in sessions), Amounts())
        return Report(total, tuple(causes), tuple(sessions), tuple(_in_order(self._days)))


def _amounts(entry: Entry) -> Amounts:
    call = entry.record
    return Amounts(
        calls=1,
        hits=int(call.usage.cache_read > 0),
        usage=call.usage,
        spent_usd=call.cost_usd,
        uncached_usd=entry.uncached_usd,
        lost_usd=entry.verdict.lost_usd if entry.verdict else _NOTHING,
    )


def _in_order(spent: dict[datetime.date, Decimal]) -> Iterable[Day]:
    if not spent:
        return
    day, last = min(spent), max(spent)
    while day <= last:
        yield Day(day, spent.get(day, _NOTHING))
        day += datetime.timedelta(days=1)
