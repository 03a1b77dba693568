"""Analytics queries over all sessions that go beyond cost roll-ups, and the values they return."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal, Protocol

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import Model
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.ledger.groups import Group, GroupBy, Narrowed
from holdfast.ledger.tables import Scope
from holdfast.ledger.verdicts import Verdict, VerdictKind

FiguresOrder = Literal["cost", "recency"]


class SkillLoad(msgspec.Struct, frozen=True):
    """A skill body that was loaded into a session, and why."""

    session_id: str
    at: float
    skill: str
    reason: str
    tokens: int


class SessionCost(msgspec.Struct, frozen=True):
    """`model` is the model of the last call; `turns` counts the turns that have ended."""

    row: SessionRow
    spent_usd: Decimal
    model: str
    turns: int
    workspace_path: str | None


class BrokenCall(msgspec.Struct, frozen=True):
    session_id: str
    name: str | None
    number: int
    at: float
    model: str
    verdict: Verdict


class Sized(msgspec.Struct, frozen=True):
    """Calls of a model whose prompts exceeded exactly the first `limits_exceeded` of the given limits."""

    model: str
    sizes: int
    calls: int
    usage: Usage


class Figures(Protocol):
    """Every result is what the events add up to at the time of the query. All of them ignore a scope's session."""

    def groups(self, group_by: GroupBy, scope: Scope = ..., narrowed: Narrowed = ...) -> tuple[Group, ...]:
        """In no particular order. `none` gives exactly one group, otherwise only groups with calls or spending."""

    def failures(self, scope: Scope = ...) -> dict[str, int]:
        """The number of failed calls by error class."""

    def latencies(self, scope: Scope = ...) -> dict[str, dict[int, int]]:
        """For each model, the number of calls by latency in milliseconds."""

    def sized(self, limits: Sequence[int], scope: Scope = ...) -> tuple[Sized, ...]:
        """Calls and usage by model and by how many of the ascending `limits` the prompt exceeded."""

    def broken(
        self, scope: Scope = ..., *, kind: VerdictKind | None = ..., component: str | None = ..., limit: int, skip: int
    ) -> tuple[BrokenCall, ...]:
        """Calls that missed the cache, the largest loss first."""

    def skill_loads(self, scope: Scope = ...) -> tuple[SkillLoad, ...]:
        """In log order."""

    def session_costs(
        self, *, order: FiguresOrder, limit: int, skip: int, simulated: bool = ...
    ) -> tuple[SessionCost, ...]:
        """One page of all sessions."""

    def turn(self, turn_id: str) -> tuple[Event, ...]:
        """The events of a turn in order; empty if there is no such turn."""


class KeepsFigures(Protocol):
    def figures(self) -> Figures: ...


def size_limits(models: Mapping[str, Model]) -> tuple[int, ...]:
    """The prompt sizes in tokens above which some model's price changes, ascending."""
    return tuple(sorted({price.prompt_tokens_over for row in models.values() for price in row.prices} - {0}))
