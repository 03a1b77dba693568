"""What an intent would load and why, and how recalls fared from day to day; nothing of it is put on record."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library
from holdfast.instructions.measures import Measures, TraceMeasures, measured
from holdfast.instructions.recall import Question
from holdfast.instructions.values import AuditRecord
from holdfast.retrieval.index import QUERY_CHARACTERS_MAX
from holdfast.service.instruction_pages import known_agent, page_route
from holdfast.service.instruction_values import StageTold
from holdfast.service.routes import Route

DAY_MS = 86_400_000


class ExploreQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent_id: str
    intent: Annotated[str, msgspec.Meta(max_length=QUERY_CHARACTERS_MAX)] = ""
    max_chunks: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000


class ScoredUnit(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is why it was loaded, or what kept it out; `place` is its place among the loaded."""

    name: str
    score: float
    relevance: float
    stages: tuple[StageTold, ...]
    matched_terms: tuple[str, ...]
    links: tuple[str, ...]
    lifted: bool
    tokens: int | None
    place: int | None
    outcome: str


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """All units of the manifest, best first."""

    intent: str
    floor: float
    model: str
    total_tokens: int
    truncated: bool
    units: tuple[ScoredUnit, ...]


class DaysQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent_id: str
    k: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    days: Annotated[int, msgspec.Meta(ge=1, le=365)] = 14


class DayMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A day of UTC; `used` and `missed` count units, as the recalls of that day were closed."""

    day: str
    recalls: int
    closed: int
    used: int
    missed: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None
    detected: TraceMeasures


class DaysTold(msgspec.Struct, frozen=True):
    days: tuple[DayMeasured, ...]
    whole: Measures


def explore(library: Library, request: ExploreQuery) -> Explored:
    agent = known_agent(library, request.agent_id)
    if not request.intent.strip():
        raise InstructionError("intent_required", "say in `intent` what an agent is about to do")
    _, shelf = library.shelf(agent.id, agent)
    question = Question(
        intent=request.intent,
        max_chunks=request.max_chunks,
        token_budget=request.token_budget,
        use_floor=library.settings.use_floor,
    )
    recalled = shelf.recall(question)
    taken = {one.name: (place, one.kind) for place, one in enumerate(recalled.chunks, start=1)}
    kept_out = {one.name: one.reason for one in recalled.dropped}
    ranking = shelf.ranking(question)
    units = tuple(
        ScoredUnit(
            name=one.id,
            score=one.score,
            relevance=one.relevance,
            stages=tuple(StageTold(share.stage, share.fit, share.added) for share in why.shares),
            matched_terms=why.matched_terms,
            links=why.links,
            lifted=one.id in shelf.lifted,
            tokens=shelf.contents[one.id].tokens if one.id in shelf.contents else None,
            place=taken[one.id][0] if one.id in taken else None,
            outcome=taken[one.id][1] if one.id in taken else kept_out.get(one.id, "unavailable"),
        )
        for one, why in ((place, ranking.why(place.id)) for place in ranking.places)
    )
    return Explored(
        intent=request.intent,
        floor=shelf.index.floor if library.settings.use_floor else 0.0,
        model=shelf.index.embedding_model_version,
        total_tokens=recalled.total_tokens,
        truncated=recalled.truncated,
        units=units,
    )


def show_days(library: Library, request: DaysQuery) -> DaysTold:
    """Every day of the time that was asked for, those without a recall too."""
    agent = known_agent(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    today = datetime.fromtimestamp(library.now() / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=request.days - 1)
    records = library.records.audits(agent.id, since=int(first.timestamp() * 1000))
    by_day: dict[str, list[AuditRecord]] = {
        f"{first + timedelta(days=number):%Y-%m-%d}": [] for number in range(request.days)
    }
    for one in records:
        by_day.setdefault(f"{datetime.fromtimestamp(one.created_at / 1000, UTC):%Y-%m-%d}", []).append(one)
    return DaysTold(
        tuple(_day(day, some, k=request.k) for day, some in by_day.items()),
        measured(records, manifest.body if manifest else (), k=request.k),
    )


def _day(day: str, records: Sequence[AuditRecord], *, k: int) -> DayMeasured:
    told = measured(records, (), k=k)
    closed = [one for one in records if one.event_type == "recall" and one.audit_closed is not None]
    return DayMeasured(
        day=day,
        recalls=told.recalls,
        closed=told.closed,
        used=sum(len(one.used_chunks) for one in closed),
        missed=sum(len(one.missed_chunks) for one in closed),
        recall_at_k=told.recall_at_k,
        hit_at_k=told.hit_at_k,
        miss_rate=told.miss_rate,
        detected=told.detected,
    )


ROUTES: tuple[Route, ...] = (
    page_route(
        "/api/instructions/{agent_id}/recall",
        explore,
        request=ExploreQuery,
        reply=Explored,
        summary="What an intent would load, with the scores of every stage; it is not put on record.",
    ),
    page_route(
        "/api/instructions/{agent_id}/days",
        show_days,
        request=DaysQuery,
        reply=DaysTold,
        summary="Recalls, hits and misses from day to day.",
    ),
)
