"""What a team asks of all sessions beside their books, and the values that answer."""

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
    """A body that entered a session, and why."""

    session_id: str
    at: float
    skill: str
    reason: str
    tokens: int


class SessionCost(msgspec.Struct, frozen=True):
    """`model` is that of its last call, and `turns` counts those that have ended."""

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
    """So many calls of a model, whose prompts had more tokens than the first `sizes` of some limits, and no other."""

    model: str
    sizes: int
    calls: int
    usage: Usage


class Figures(Protocol):
    """Every answer is what the events add up to, at the moment of asking. A scope's session is heeded by none."""

    def groups(self, group_by: GroupBy, scope: Scope = ..., narrowed: Narrowed = ...) -> tuple[Group, ...]:
        """In no order. Where all is one there is one, else there are those that have spent or called."""

    def failures(self, scope: Scope = ...) -> dict[str, int]:
        """How many calls failed, by the class of what went wrong."""

    def latencies(self, scope: Scope = ...) -> dict[str, dict[int, int]]:
        """How many calls of each model took how many milliseconds."""

    def sized(self, limits: Sequence[int], scope: Scope = ...) -> tuple[Sized, ...]:
        """What calls took, by model and by how many of the limits, which rise, their prompts were over."""

    def broken(
        self, scope: Scope = ..., *, kind: VerdictKind | None = ..., component: str | None = ..., limit: int, skip: int
    ) -> tuple[BrokenCall, ...]:
        """Calls whose cache did not hold, those that lost most first."""

    def skill_loads(self, scope: Scope = ...) -> tuple[SkillLoad, ...]:
        """In the order of the log."""

    def session_costs(
        self, *, order: FiguresOrder, limit: int, skip: int, simulated: bool = ...
    ) -> tuple[SessionCost, ...]:
        """A page of all sessions."""

    def turn(self, turn_id: str) -> tuple[Event, ...]:
        """The events of a turn in order; none where there is no such turn."""


class KeepsFigures(Protocol):
    def figures(self) -> Figures: ...


def size_limits(models: Mapping[str, Model]) -> tuple[int, ...]:
    """From how many tokens on some prompt of some model has another price, rising."""
    return tuple(sorted({price.prompt_tokens_over for row in models.values() for price in row.prices} - {0}))
