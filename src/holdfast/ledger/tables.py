"""What can be asked of the books of all sessions, and the values that answer."""

import datetime
from decimal import Decimal
from typing import Literal, Protocol

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.ledger.books import Entry
from holdfast.ledger.verdicts import VerdictKind

PAGE_MAX = 500
"""Sessions or calls in one answer."""

NEVER = 1e300
"""Later than anything."""

SessionOrder = Literal["lost", "spent", "newest"]

_NOTHING = Decimal(0)


class Scope(msgspec.Struct, frozen=True):
    """What is counted: from a time on and before another, one session or all, with simulated ones or without."""

    since: float = 0.0
    until: float = NEVER
    session_id: str | None = None
    simulated: bool = False


class Amounts(msgspec.Struct, frozen=True):
    """`uncached_usd` is what the same calls would have cost without a cache; calls without a price count as they are.

    What was spent to keep caches, by pings or under a name, is spent, and would not have been without a cache.
    `hits` are calls that read anything at all; how much of the prompts was read is `usage.read_share`. `stable_written`
    tokens were written for tools and stable system prompt; `latency_ms` is how long all calls took together.
    """

    calls: int = 0
    hits: int = 0
    usage: Usage = Usage()
    spent_usd: Decimal = _NOTHING
    uncached_usd: Decimal = _NOTHING
    lost_usd: Decimal = _NOTHING
    latency_ms: int = 0
    stable_written: int = 0

    @property
    def saved_usd(self) -> Decimal:
        return self.uncached_usd - self.spent_usd

    @property
    def hit_rate(self) -> float:
        return self.hits / self.calls if self.calls else 0.0


class DayAmounts(msgspec.Struct, frozen=True):
    date: datetime.date
    amounts: Amounts


class ModelAmounts(msgspec.Struct, frozen=True):
    provider: str
    model: str
    amounts: Amounts


class Cause(msgspec.Struct, frozen=True):
    """`calls` have lost something for this reason; `given` is how often the verdict was given, lost or not."""

    kind: VerdictKind
    component: str | None
    calls: int
    tokens: int
    lost_usd: Decimal
    given: int = 0


class SessionAmounts(msgspec.Struct, frozen=True):
    """`worst` is the verdict of the call that lost most."""

    id: str
    name: str | None
    model: str
    last_event_at: float
    amounts: Amounts
    worst: VerdictKind | None


class Outcome(msgspec.Struct, frozen=True):
    """How calls ended: `completed`, or the class of what went wrong. Latencies are known to a factor of two."""

    provider: str
    model: str
    outcome: str
    calls: int
    retries: int
    latency_ms_mean: float
    latency_ms_median_under: int
    latency_ms_p95_under: int


class Tables(Protocol):
    """Every answer is what the events add up to, at the moment of asking."""

    def totals(self, scope: Scope = ...) -> Amounts: ...

    def days(self, scope: Scope = ...) -> tuple[DayAmounts, ...]:
        """Days in order; those on which nothing was booked are left out."""

    def models(self, scope: Scope = ...) -> tuple[ModelAmounts, ...]:
        """The most expensive first."""

    def causes(self, scope: Scope = ...) -> tuple[Cause, ...]:
        """What cost most first."""

    def verdicts(self, scope: Scope = ...) -> tuple[Cause, ...]:
        """All verdicts that were given, also those by which nothing was lost; what cost most first."""

    def session_amounts(
        self, scope: Scope = ..., *, order: SessionOrder = ..., limit: int = ..., offset: int = ...
    ) -> tuple[SessionAmounts, ...]:
        """A page of the sessions that have spent anything, `PAGE_MAX` at the most."""

    def session_calls(self, session_id: str, *, after: int = ..., limit: int = ...) -> tuple[Entry, ...]:
        """A page of a session's calls behind the one with the number `after`."""

    def outcomes(self, scope: Scope = ...) -> tuple[Outcome, ...]:
        """The most frequent first."""


class KeepsTables(Protocol):
    """A log that can be asked for its tables."""

    def tables(self) -> Tables: ...
