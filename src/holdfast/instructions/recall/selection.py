"""Choose the units that an intent loads: guaranteed, hinted, then ranked, within a token budget. Deterministic."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.errors import InstructionError, UserError
from holdfast.instructions.models import ChunkSource, Manifest
from holdfast.retrieval.encoders.registry import EncodingStore, create_semantic_stage
from holdfast.retrieval.index import DECIMALS, RankedUnit, Ranking, SearchIndex, StageContribution, StageWeights
from holdfast.retrieval.units import SearchUnit

DEFAULT_CHUNKS_MAX = 3
DEFAULT_TOKEN_BUDGET = 2000
# Soft lift of seed 003, section 21.5.5: score += log(1 + lambda) with lambda = 0.15, which is +0.14.
SCORE_LIFT = math.log(1 + 0.15)
# A unit far below the best one would only fill up the room. In collections of about twenty units from six published
# query sets, 99 % of the right answers among the first three pass, and 1.8 of three units remain.
WEAK_SCORE_SHARE = 0.45
RECALLS_CACHED_MAX = 256
UNAVAILABLE = "recall_backend_unavailable"


class UnitContent(msgspec.Struct, frozen=True):
    text: str
    tokens: int
    source: ChunkSource
    fact_uri: str | None = None
    version: str | None = None
    valid_until: int | None = None


class RecallQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`task_type` is the wake reason, known if the caller names its heartbeat."""

    intent: str
    max_chunks: int = DEFAULT_CHUNKS_MAX
    token_budget: int = DEFAULT_TOKEN_BUDGET
    manifest_hint: tuple[str, ...] = ()
    use_floor: bool = True
    weights: StageWeights = StageWeights()
    task_type: str | None = None


class RankExplanation(msgspec.Struct, frozen=True):
    relevance: float
    stages: tuple[StageContribution, ...]
    matched_terms: tuple[str, ...]
    links: tuple[str, ...]
    is_lifted: bool
    fits_task_type: bool = False


class SelectedChunk(msgspec.Struct, frozen=True):
    name: str
    content: UnitContent
    score: float
    kind: str
    why: RankExplanation | None


class DroppedChunk(msgspec.Struct, frozen=True):
    """`reason` is below_floor, weak (far below the best unit), over_budget, over_max_chunks or unavailable."""

    name: str
    reason: str
    score: float


class RecallSelection(msgspec.Struct, frozen=True):
    chunks: tuple[SelectedChunk, ...]
    dropped: tuple[DroppedChunk, ...]
    total_tokens: int
    truncated: bool
    missed_hints: tuple[str, ...]
    dropped_hints: tuple[str, ...]
    unavailable: tuple[str, ...]


class InstructionSet:
    """A manifest with its texts, ready for recall; `active_since` is when the newest of them became active."""

    def __init__(
        self,
        manifest: Manifest,
        contents: Mapping[str, UnitContent],
        *,
        encoder: str | None = None,
        encodings: EncodingStore | None = None,
        lifted: Collection[str] = (),
        since: int = 0,
    ) -> None:
        self.active_since = since
        self.manifest = manifest
        self.contents = contents
        self.lifted = frozenset(lifted)
        self._encoder = encoder
        self._encodings = encodings
        # The same question has the same answer until a text, the manifest or the encoder changes, and then there is
        # another set: agents often ask again, and neither encoding nor ranking needs to be repeated.
        self._recall = lru_cache(RECALLS_CACHED_MAX)(lambda question: _ChunkPacker(self, question).pack())

    @cached_property
    def index(self) -> SearchIndex:
        """Built on first use: reading only the manifest must not wait for an encoder."""
        units = []
        for entry in self.manifest.body:
            triggers = (*entry.load_triggers.intents, *entry.load_triggers.keywords)
            text = self.contents[entry.name].text if entry.name in self.contents else ""
            units.append(SearchUnit(entry.name, entry.name, entry.description, triggers, text))
        with _or_unavailable():
            encoder, encodings = self._encoder, self._encodings
            return SearchIndex(units, meaning=create_semantic_stage(encoder, encodings=encodings) if encoder else None)

    @cached_property
    def snapshot_id(self) -> str:
        """Equal for equal manifest, texts, encoder and lifts."""
        identity = f"{self.manifest.id} {self.index.digest} {' '.join(sorted(self.lifted))}"
        return hashlib.sha256(identity.encode()).hexdigest()

    def find_obstacle(self, name: str) -> str | None:
        """Why a recall can never return the unit; None if it can."""
        if name in self.contents:
            return None
        return "it has no active text: the text is missing, quarantined or waits for an approval"

    def rank(self, query: str, *, weights: StageWeights | None = None) -> Ranking:
        """All units, best first, without lifts. Raises InstructionError `recall_backend_unavailable`."""
        index = self.index
        with _or_unavailable():
            return index.rank(query, weights=weights)

    def rank_with_lifts(self, question: RecallQuery) -> Ranking:
        """All units, best first, lifts included."""
        ranking = self.rank(question.intent, weights=question.weights)
        lifts = Counter((*self.lifted, *self.units_for_task_type(question)))
        if not lifts:
            return ranking
        lifted = (_lift(unit, lifts[unit.id]) for unit in ranking.units)
        return Ranking(tuple(sorted(lifted, key=lambda unit: (-unit.score, unit.id))), ranking.explain)

    def units_for_task_type(self, question: RecallQuery) -> frozenset[str]:
        """Units that list this task type in their triggers; this counts as much as one lift."""
        wanted = question.task_type
        return frozenset(entry.name for entry in self.manifest.body if wanted in entry.load_triggers.task_types)

    def find_filler(self, ranking: Ranking, *, use_floor: bool) -> dict[str, str]:
        """The units that a recall leaves out although there is room for them, with the reason."""
        if not use_floor:
            return {}
        floor, filler = self.index.floor, {}
        best = next((unit.score for unit in ranking.units if unit.id in self.contents), 0.0)
        for unit in ranking.units:
            if unit.relevance < floor:
                filler[unit.id] = "below_floor"
            elif unit.score < WEAK_SCORE_SHARE * best:
                filler[unit.id] = "weak"
        return filler

    def recall(self, question: RecallQuery) -> RecallSelection:
        return self._recall(question)


@contextmanager
def _or_unavailable() -> Iterator[None]:
    """Encoders are third-party code and may raise anything; the caller gets one error that it can retry."""
    try:
        yield
    except UserError as error:
        raise InstructionError(UNAVAILABLE, f"units cannot be ranked now: {error}") from error
    except Exception as error:
        raise InstructionError(UNAVAILABLE, "recall cannot be used now; try again") from error


def _lift(unit: RankedUnit, lifts: int) -> RankedUnit:
    score = unit.score + lifts * SCORE_LIFT
    # Rounded, so that ties are decided by name and not by the last bit of a float: recall must be deterministic.
    return msgspec.structs.replace(unit, score=round(min(1.0, score), DECIMALS)) if lifts else unit


class _ChunkPacker:
    def __init__(self, instruction_set: InstructionSet, question: RecallQuery) -> None:
        self._instruction_set = instruction_set
        self._question = question
        self._ranking = instruction_set.rank_with_lifts(question)
        self._fitting = instruction_set.units_for_task_type(question)
        self._ranked = {unit.id: unit for unit in self._ranking.units}
        self._dropped: list[DroppedChunk] = []
        self._is_truncated = False
        self._contents = contents = instruction_set.contents
        entries = instruction_set.manifest.body
        self._guaranteed = [entry for entry in entries if entry.guarantee_load and entry.name in contents]
        # Guaranteed units reserve their tokens first and may exceed the budget; hints and ranked units get the rest.
        self._tokens_left = question.token_budget - sum(contents[entry.name].tokens for entry in self._guaranteed)
        self._taken: list[SelectedChunk] = []

    def pack(self) -> RecallSelection:
        missed, dropped_hints = self._take_hints()
        self._take_ranked()
        prepended = [self._select(entry.name, "guaranteed") for entry in self._guaranteed if entry.force_position]
        appended = [self._select(entry.name, "guaranteed") for entry in self._guaranteed if not entry.force_position]
        chunks = (*prepended, *self._taken, *appended)
        total = sum(chunk.content.tokens for chunk in chunks)
        entries = self._instruction_set.manifest.body
        unavailable = tuple(entry.name for entry in entries if entry.name not in self._contents)
        is_truncated = self._is_truncated or total > self._question.token_budget
        return RecallSelection(chunks, tuple(self._dropped), total, is_truncated, missed, dropped_hints, unavailable)

    def _take_hints(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        unknown, dropped = [], []
        always = {entry.name for entry in self._guaranteed}
        for name in dict.fromkeys(self._question.manifest_hint):
            if name not in self._contents or name not in self._ranked:
                unknown.append(name)
            elif name not in always and not self._take(name, "hint"):
                dropped.append(name)
                self._is_truncated = True
        return tuple(unknown), tuple(dropped)

    def _take_ranked(self) -> None:
        done = {entry.name for entry in self._guaranteed} | {chunk.name for chunk in self._taken}
        done |= {chunk.name for chunk in self._dropped}
        filler = self._instruction_set.find_filler(self._ranking, use_floor=self._question.use_floor)
        for unit in self._ranking.units:
            if unit.id in done:
                continue
            if unit.id not in self._contents:
                self._drop(unit.id, "unavailable")
            elif unit.id in filler:
                self._drop(unit.id, filler[unit.id])
            elif len(self._taken) >= self._question.max_chunks:
                self._drop(unit.id, "over_max_chunks")
            elif not self._take(unit.id, "ranked"):
                self._is_truncated = True

    def _take(self, name: str, kind: str) -> bool:
        tokens = self._contents[name].tokens
        is_full = len(self._taken) >= self._question.max_chunks
        if is_full or tokens > self._tokens_left:
            self._drop(name, "over_max_chunks" if is_full else "over_budget")
            return False
        self._tokens_left -= tokens
        self._taken.append(self._select(name, kind))
        return True

    def _drop(self, name: str, reason: str) -> None:
        self._dropped.append(DroppedChunk(name, reason, self._ranked[name].score))

    def _select(self, name: str, kind: str) -> SelectedChunk:
        rank = self._ranking.explain(name)
        is_lifted, fits = name in self._instruction_set.lifted, name in self._fitting
        why = RankExplanation(rank.relevance, rank.stages, rank.matched_terms, rank.links, is_lifted, fits)
        return SelectedChunk(name, self._contents[name], self._ranked[name].score, kind, why)


def make_content(text: str, source: ChunkSource) -> UnitContent:
    return UnitContent(text, count_cl100k_tokens(text), source)
