"""What a session adds to the figures of all: its calls, failures, skills and turns, each with its time."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models
from holdfast.events.envelope import Event
from holdfast.events.log import SessionRow
from holdfast.events.payloads import (
    AnyPayload,
    CacheKept,
    CachePinged,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
    SessionStarted,
    SkillLoaded,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)
from holdfast.events.payloads_controls import CacheControlled
from holdfast.layers.standard import PINNED
from holdfast.ledger.books import entries
from holdfast.ledger.verdicts import Verdict

STABLE_LAYERS = frozenset({"tools", "nonce", *PINNED})


class CallFigure(msgspec.Struct, frozen=True):
    """One call that was paid for. `stable_written` tokens of it were written for tools and stable system prompt.

    `number` is its place in the session, 0 where it is not known.
    """

    session_id: str
    parent_session_id: str | None
    at: float
    model: str
    usage: Usage
    cost_usd: Decimal
    uncached_usd: Decimal
    latency_ms: int
    stable_written: int
    verdict: Verdict | None
    number: int = 0

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]


class ExtraFigure(msgspec.Struct, frozen=True):
    """What was paid beside the calls: caches under a name, requests that asked for nothing."""

    session_id: str
    parent_session_id: str | None
    at: float
    model: str
    cost_usd: Decimal


class FailureFigure(msgspec.Struct, frozen=True):
    session_id: str
    at: float
    model: str
    error_class: str


class SkillFigure(msgspec.Struct, frozen=True):
    """A body that entered a session, and why."""

    session_id: str
    at: float
    skill: str
    reason: str
    tokens: int


class SessionFigures(msgspec.Struct, frozen=True):
    """All of one session, as of the events that its row counts. What a `simulated` one took is nobody's money."""

    row: SessionRow
    workspace_path: str | None
    turn_count: int
    turn_ids: tuple[str, ...]
    calls: tuple[CallFigure, ...]
    extras: tuple[ExtraFigure, ...]
    failures: tuple[FailureFigure, ...]
    skills: tuple[SkillFigure, ...]
    simulated: bool = False

    @property
    def cost_usd(self) -> Decimal:
        paid = sum((call.cost_usd for call in self.calls), Decimal(0))
        return sum((extra.cost_usd for extra in self.extras), paid)


def figures_of(row: SessionRow, events: Sequence[Event], models: Models) -> SessionFigures:
    written = dict(_stable_writes(events))
    return SessionFigures(
        row=row,
        workspace_path=next((it.workspace_path for it in _payloads(events) if isinstance(it, SessionStarted)), None),
        turn_count=sum(isinstance(it, TurnCompleted | TurnCancelled) for it in _payloads(events)),
        turn_ids=tuple(event.id for event in events if isinstance(event.payload, TurnStarted)),
        calls=tuple(
            CallFigure(
                session_id=row.id,
                parent_session_id=row.parent_session_id,
                at=entry.record.at,
                model=entry.record.model,
                usage=entry.record.usage,
                cost_usd=entry.record.cost_usd,
                uncached_usd=entry.uncached_usd,
                latency_ms=entry.record.latency_ms,
                stable_written=written.get(entry.record.request_id, 0),
                verdict=entry.verdict,
                number=entry.record.number,
            )
            for entry in entries(events, models)
            if entry.source == "provider"
        ),
        extras=tuple(_extras(row, events)),
        failures=tuple(
            FailureFigure(row.id, event.at, event.payload.model, event.payload.error_class)
            for event in events
            if isinstance(event.payload, LlmCallFailed)
        ),
        skills=tuple(
            SkillFigure(row.id, event.at, it.skill_id, it.load_reason, it.load_size_tokens)
            for event in events
            if isinstance(it := event.payload, SkillLoaded)
        ),
        simulated=any(isinstance(it, SessionStarted) and it.simulated for it in _payloads(events[:1])),
    )


def _payloads(events: Iterable[Event]) -> Iterator[AnyPayload]:
    return (event.payload for event in events)


def _extras(row: SessionRow, events: Iterable[Event]) -> Iterator[ExtraFigure]:
    for event in events:
        match event.payload:
            case CacheKept(cost_usd=made, storage_cost_usd=stored, model=model):
                yield ExtraFigure(row.id, row.parent_session_id, event.at, model, made + stored)
            case CachePinged(cost_usd=cost, model=model):
                yield ExtraFigure(row.id, row.parent_session_id, event.at, model, cost)
            case _:
                pass


def _stable_writes(events: Iterable[Event]) -> Iterator[tuple[str, int]]:
    """How many tokens each call wrote for what does not change, by the share of bytes that it is."""
    chain: list[Link] = []
    newest = 0.0
    shares: dict[str, float] = {}
    for event in events:
        match event.payload:
            case RequestPrepared() as it:
                del chain[it.shared_blocks :]
                chain += it.links
                newest = stable_share(chain)
            case ModelSwitched() | CacheControlled(new_prefix=True):
                chain.clear()
            case LlmCallStarted(request_id=request_id):
                shares[request_id] = newest
            case LlmCallCompleted(request_id=request_id, usage=usage):
                stable = round(shares.pop(request_id, newest) * usage.tokens_sent)
                yield request_id, min(usage.cache_write, max(0, stable - usage.cache_read))
            case _:
                pass


def stable_share(chain: Sequence[Link]) -> float:
    """The share of a prompt's bytes that stands in front of the first layer which grows or changes."""
    end = 0
    for link in chain:
        if link.layer not in STABLE_LAYERS:
            break
        end = link.end
    return end / chain[-1].end if chain and chain[-1].end else 0.0
