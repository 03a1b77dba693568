"""HTTP routes that explain a recall without recording it, and show recall quality by day."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.coverage.metrics import RecallMetrics, TraceMetrics, compute_recall_metrics
from holdfast.instructions.models import AuditRecord
from holdfast.instructions.recall.selection import RecallQuery
from holdfast.retrieval.index import QUERY_CHARACTERS_MAX
from holdfast.service.api.instructions.agents_view import page_route, require_agent
from holdfast.service.api.instructions.schemas import AgentRequest, StageScore
from holdfast.service.http.routes import Route, copy_fields

DAY_MS = 86_400_000


class ExploreRequest(AgentRequest, frozen=True):
    intent: Annotated[str, msgspec.Meta(max_length=QUERY_CHARACTERS_MAX)] = ""
    max_chunks: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000


class ScoredUnit(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is why the unit was loaded or left out; `rank` is its rank among the loaded ones."""

    name: str
    score: float
    relevance: float
    stages: tuple[StageScore, ...]
    matched_terms: tuple[str, ...]
    links: tuple[str, ...]
    lifted: bool
    tokens: int | None
    rank: int | None
    outcome: str


class ExploreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """All units of the manifest, best first."""

    intent: str
    floor: float
    model: str
    total_tokens: int
    truncated: bool
    units: tuple[ScoredUnit, ...]


class RecallDaysRequest(AgentRequest, frozen=True):
    k: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    days: Annotated[int, msgspec.Meta(ge=1, le=365)] = 14


class RecallDayRow(msgspec.Struct, frozen=True, kw_only=True):
    """One UTC day; `used` and `missed` count units as reported when that day's recalls were closed."""

    day: str
    recalls: int
    closed: int
    used: int
    missed: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None
    detected: TraceMetrics


class RecallDaysResponse(msgspec.Struct, frozen=True):
    days: tuple[RecallDayRow, ...]
    total: RecallMetrics


def explore_recall(context: InstructionContext, request: ExploreRequest) -> ExploreResponse:
    """What an intent would load, with the scores of every stage; not recorded."""
    agent = require_agent(context, request.agent_id)
    if not request.intent.strip():
        raise InstructionError("intent_required", "say in `intent` what an agent is about to do")
    _, instruction_set = context.require_instruction_set(agent.id, agent)
    question = RecallQuery(
        intent=request.intent,
        max_chunks=request.max_chunks,
        token_budget=request.token_budget,
        use_floor=context.settings.use_floor,
    )
    recalled = instruction_set.recall(question)
    loaded = {chunk.name: (rank, chunk.kind) for rank, chunk in enumerate(recalled.chunks, start=1)}
    left_out = {unit.name: unit.reason for unit in recalled.dropped}
    ranking = instruction_set.rank_with_lifts(question)
    units = tuple(
        copy_fields(
            ScoredUnit,
            why,
            name=unit.id,
            score=unit.score,
            relevance=unit.relevance,
            stages=tuple(StageScore(share.stage, share.score, share.contribution) for share in why.stages),
            lifted=unit.id in instruction_set.lifted,
            tokens=instruction_set.contents[unit.id].tokens if unit.id in instruction_set.contents else None,
            rank=loaded[unit.id][0] if unit.id in loaded else None,
            outcome=loaded[unit.id][1] if unit.id in loaded else left_out.get(unit.id, "unavailable"),
        )
        for unit, why in ((unit, ranking.explain(unit.id)) for unit in ranking.units)
    )
    return ExploreResponse(
        intent=request.intent,
        floor=instruction_set.index.floor if context.settings.use_floor else 0.0,
        model=instruction_set.index.embedding_model_version,
        total_tokens=recalled.total_tokens,
        truncated=recalled.truncated,
        units=units,
    )


def list_recall_days(context: InstructionContext, request: RecallDaysRequest) -> RecallDaysResponse:
    """Recalls, hits and misses by day.

    Every day of the requested period, including days without a recall.
    """
    agent = require_agent(context, request.agent_id)
    manifest = context.records.manifest(agent.id)
    # Whole UTC days, so that the figures of past days do not change with the time of the request.
    today = datetime.fromtimestamp(context.now() / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=request.days - 1)
    records = context.records.audits(agent.id, since=int(first.timestamp() * 1000))
    by_day: dict[str, list[AuditRecord]] = {
        f"{first + timedelta(days=number):%Y-%m-%d}": [] for number in range(request.days)
    }
    for record in records:
        by_day.setdefault(f"{datetime.fromtimestamp(record.created_at / 1000, UTC):%Y-%m-%d}", []).append(record)
    return RecallDaysResponse(
        tuple(_day(day, of_day, k=request.k) for day, of_day in by_day.items()),
        compute_recall_metrics(records, manifest.body if manifest else (), k=request.k),
    )


def _day(day: str, records: Sequence[AuditRecord], *, k: int) -> RecallDayRow:
    measures = compute_recall_metrics(records, (), k=k)
    closed = [record for record in records if record.event_type == "recall" and record.audit_closed is not None]
    return copy_fields(
        RecallDayRow,
        measures,
        day=day,
        used=sum(len(record.used_chunks) for record in closed),
        missed=sum(len(record.missed_chunks) for record in closed),
    )


ROUTES: tuple[Route, ...] = (
    page_route("/api/instructions/{agent_id}/recall", explore_recall),
    page_route("/api/instructions/{agent_id}/days", list_recall_days),
)
