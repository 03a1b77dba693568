"""Cost queries over all sessions: the protocol, and the values it returns."""

import datetime
from decimal import Decimal
from typing import Literal, Protocol

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.ledger.verdicts import VerdictKind

# Sessions per page.
PAGE_MAX = 500

# Later than any event; a float that every store can compare with.
NEVER = 1e300

SessionOrder = Literal["lost", "spent", "newest"]

_NOTHING = Decimal(0)


class Scope(msgspec.Struct, frozen=True):
    """What is counted: `since` is inclusive, `until` exclusive; one session or all; with or without simulated ones."""

    since: float = 0.0
    until: float = NEVER
    session_id: str | None = None
    simulated: bool = False


class Amounts(msgspec.Struct, frozen=True):
    """What a set of calls and charges adds up to.

    `uncached_usd` is what the same calls would have cost without a cache; unpriced calls count with their actual cost.
    Keep-alive pings and explicit caches add to `spent_usd` but not to `uncached_usd`: without a cache they would not
    exist. `hits` are calls that read anything from the cache; the share of tokens read is `usage.read_share`.
    `stable_write_tokens` were written for the tools and the stable system prompt; `latency_ms` is the total over all
    calls.
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
        # Negative where keeping caches cost more than they saved.
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
    """`calls` lost something for this reason; `verdict_count` counts the verdict with and without a loss."""

    kind: VerdictKind
    component: str | None
    calls: int
    tokens: int
    lost_usd: Decimal
    given: int = 0


class SessionAmounts(msgspec.Struct, frozen=True):
    """`worst_verdict` is the verdict of the call that lost most."""

    id: str
    name: str | None
    model: str
    last_event_at: float
    amounts: Amounts
    worst: VerdictKind | None


class Outcome(msgspec.Struct, frozen=True):
    """How calls ended: `completed`, or the error class. Latency quantiles are upper bounds within a factor of two."""

    provider: str
    model: str
    outcome: str
    calls: int
    retries: int
    latency_ms_mean: float
    latency_ms_median_under: int
    latency_ms_p95_under: int


class Tables(Protocol):
    """Every result is what the events add up to at the time of the query."""

    def totals(self, scope: Scope = ...) -> Amounts: ...

    def days(self, scope: Scope = ...) -> tuple[DayAmounts, ...]:
        """Days in order; days without postings are left out."""

    def models(self, scope: Scope = ...) -> tuple[ModelAmounts, ...]:
        """The most expensive first."""

    def causes(self, scope: Scope = ...) -> tuple[Cause, ...]:
        """The most expensive first."""

    def verdicts(self, scope: Scope = ...) -> tuple[Cause, ...]:
        """All verdicts, including those without a loss; the most expensive first."""

    def session_amounts(
        self, scope: Scope = ..., *, order: SessionOrder = ..., limit: int = ..., offset: int = ...
    ) -> tuple[SessionAmounts, ...]:
        """One page, at most `PAGE_MAX`, of the sessions that spent anything."""

    def outcomes(self, scope: Scope = ...) -> tuple[Outcome, ...]:
        """The most frequent first."""


class KeepsTables(Protocol):
    """A log that supports cost queries."""

    def tables(self) -> Tables: ...
