"""The search index: ranks the units of a collection for a query, best first, and explains the ranking."""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low

import msgspec

from holdfast.retrieval.fusion import DECIMALS, Weights, spread
from holdfast.retrieval.graph import GraphStage
from holdfast.retrieval.lexical import LexicalStage
from holdfast.retrieval.meaning import NO_MODEL, MeaningStage
from holdfast.retrieval.units import Unit, whole_text
from holdfast.retrieval.words import counted_terms

LIMIT = 10
QUERY_CHARACTERS_MAX = 8_000  # Bounds the time of one search.
FLOOR_LEXICAL = 0.035
"""Calibrated: 49 of 50 right answers are more relevant, on nine query sets in which every query has an answer."""
_DIGEST_MODULUS = 1 << 256


class Share(msgspec.Struct, frozen=True):
    """The contribution of one stage: its own score (0 to 1 among the units), and what that adds to the total."""

    stage: str
    fit: float
    added: float


class Found(msgspec.Struct, frozen=True):
    """`score` (0 to 1) orders within one result; `relevance` (0 to 1) is comparable between queries; floors use it."""

    id: str
    score: float
    relevance: float
    shares: tuple[Share, ...] = ()
    matched_terms: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """The best units, best first; `dropped` would be among them if they were not below the floor."""

    found: tuple[Found, ...]
    dropped: tuple[Found, ...]
    floor: float
    weights: Weights
    embedding_model_version: str


class Place(msgspec.Struct, frozen=True):
    """A unit's position in a ranking, without the explanation."""

    id: str
    score: float
    relevance: float


class Ranking(msgspec.Struct, frozen=True):
    """All units, best first; `explain` computes the explanation of one unit on request."""

    places: tuple[Place, ...]
    why: Callable[[str], Found]


class _QueryScores(msgspec.Struct, frozen=True):
    """The scores of all units for one query: per stage, fused, and as relevance."""

    terms: tuple[str, ...]
    weights: Weights
    slots: list[int]
    stages: tuple[list[float], list[float], list[float]]
    score: list[float]
    relevance: list[float]


class Index:
    """Units by id. Updates are incremental, and results do not depend on the order of updates."""

    def __init__(self, units: Iterable[Unit] = (), *, meaning: MeaningStage | None = None) -> None:
        self._meaning = meaning
        self._lexical = LexicalStage()
        self._graph = GraphStage()
        self._slots: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._free: list[int] = []
        self._units: dict[str, Unit] = {}
        self._digest = 0
        self.add(units)

    @property
    def embedding_model_version(self) -> str:
        return self._meaning.model_version if self._meaning is not None else NO_MODEL

    @property
    def floor(self) -> float:
        """The relevance below which a unit is filler, calibrated for the available stages."""
        return FLOOR_LEXICAL if self._meaning is None else self._meaning.floor

    @property
    def digest(self) -> str:
        """Equal for equal units and the same model, whatever the order of updates."""
        text = f"{self._digest:064x} {self.embedding_model_version}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, unit_id: object) -> bool:
        return unit_id in self._slots

    def add(self, units: Iterable[Unit]) -> None:
        """Add units; a unit with an existing id replaces the old one."""
        for unit in units:
            if self._units.get(unit.id) == unit:
                continue
            self.remove((unit.id,))
            slot = self._free.pop() if self._free else len(self._ids)
            if slot == len(self._ids):
                self._ids.append(None)
            self._ids[slot] = unit.id
            self._slots[unit.id] = slot
            self._units[unit.id] = unit
            self._digest = (self._digest + _unit_number(unit)) % _DIGEST_MODULUS
            self._lexical.add(slot, whole_text(unit))
            self._graph.add(slot, unit)
            if self._meaning is not None:
                self._meaning.add(slot, unit)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove units; unknown ids are ignored."""
        for unit_id in ids:
            if (slot := self._slots.pop(unit_id, None)) is None:
                continue
            self._digest = (self._digest - _unit_number(self._units.pop(unit_id))) % _DIGEST_MODULUS
            self._ids[slot] = None
            self._free.append(slot)
            self._lexical.remove(slot)
            self._graph.remove(slot)
            if self._meaning is not None:
                self._meaning.remove(slot)

    def search(
        self, query: str, *, limit: int = LIMIT, weights: Weights | None = None, floor: float | None = None
    ) -> Answer:
        """The best `limit` units; a `floor` of 0 accepts everything, None uses the calibrated one."""
        floor_used = self.floor if floor is None else floor
        scores = self._score_units(query, weights)
        passing = [position for position, relevance in enumerate(scores.relevance) if relevance >= floor_used]
        best = self._best_positions(scores.score, passing, max(0, limit))
        unfiltered = self._best_positions(scores.score, range(len(scores.slots)), max(0, limit))
        return Answer(
            tuple(self._explain(scores, position) for position in best),
            tuple(
                self._explain(scores, position) for position in unfiltered if scores.relevance[position] < floor_used
            ),
            floor_used,
            scores.weights,
            self.embedding_model_version,
        )

    def rank(self, query: str, *, weights: Weights | None = None) -> Ranking:
        """All units in the order of `search`, without a floor; `explain` is valid until a unit changes."""
        scores = self._score_units(query, weights)
        ids = list(self._slots)
        order = self._best_positions(scores.score, range(len(ids)), len(ids))
        places = (
            Place(ids[position], round(scores.score[position], DECIMALS), round(scores.relevance[position], DECIMALS))
            for position in order
        )
        return Ranking(tuple(places), lambda unit_id: self._explain(scores, ids.index(unit_id)))

    def _score_units(self, query: str, weights: Weights | None) -> _QueryScores:
        weights = weights if weights is not None else Weights()
        if self._meaning is None:
            weights = weights.without_semantic()
        else:
            weights = weights.with_words_at(self._meaning.words_share)
        query = query[:QUERY_CHARACTERS_MAX]
        slots = list(self._slots.values())
        terms = counted_terms(query)
        match = self._lexical.match(terms)
        word_scores = [match.scores.get(slot, 0.0) for slot in slots]
        similarities = self._semantic_scores(query, slots)
        lexical = spread(word_scores, lowest=0.0)
        # Similarities are spread from the median up: the less similar half carries no information about the rest.
        semantic = spread(similarities, lowest=median_low(similarities) if similarities else None)
        graph = self._graph_scores(slots, lexical, semantic, weights)
        score = [
            weights.lexical * word_score + weights.semantic * similarity + weights.graph * link_score
            for word_score, similarity, link_score in zip(lexical, semantic, graph, strict=True)
        ]
        # Relevance must be comparable between queries: the share of the best possible word score, averaged with the
        # similarity if there are vectors.
        share = 1 / match.best_possible if match.best_possible else 0.0
        relevance = [share * score for score in word_scores]
        if self._meaning is not None:
            relevance = [
                (word_score + similarity) / 2 for word_score, similarity in zip(relevance, similarities, strict=True)
            ]
        return _QueryScores(tuple(terms), weights, slots, (lexical, semantic, graph), score, relevance)

    def _best_positions(self, score: list[float], candidates: Sequence[int], limit: int) -> list[int]:
        """Positions of the best units, by rounded score, then by id."""
        if len(candidates) > limit > 0:
            # Sort only the units that can tie with the last of the best after rounding.
            threshold = heapq.nlargest(limit, (score[position] for position in candidates))[-1] - 10**-DECIMALS
            candidates = [position for position in candidates if score[position] >= threshold]
        ids = list(self._slots) if candidates else []
        return sorted(candidates, key=lambda position: (-round(score[position], DECIMALS), ids[position]))[:limit]

    def _semantic_scores(self, query: str, slots: list[int]) -> list[float]:
        if self._meaning is None:
            return [0.0] * len(slots)
        similarities = self._meaning.match(query, slots=len(self._ids))
        return [similarities[slot] for slot in slots]

    def _graph_scores(
        self, slots: list[int], lexical: list[float], semantic: list[float], weights: Weights
    ) -> list[float]:
        if not weights.graph:
            return [0.0] * len(slots)
        rest = weights.lexical + weights.semantic
        lexical_share, semantic_share = (weights.lexical / rest, weights.semantic / rest) if rest > 0 else (0.5, 0.5)
        reached = self._graph.reach(
            {
                slot: lexical_share * word_score + semantic_share * similarity
                for slot, word_score, similarity in zip(slots, lexical, semantic, strict=True)
            }
        )
        return [reached.get(slot, 0.0) for slot in slots]

    def _explain(self, scores: _QueryScores, position: int) -> Found:
        slot = scores.slots[position]
        unit_id = self._ids[slot]
        assert unit_id is not None, "a slot in use has no unit"
        shares = (
            Share(stage, stage_scores[position], weight * stage_scores[position])
            for stage, weight, stage_scores in zip(
                scores.weights.__struct_fields__, msgspec.structs.astuple(scores.weights), scores.stages, strict=True
            )
            if stage != "semantic" or self._meaning is not None
        )
        return Found(
            unit_id,
            round(scores.score[position], DECIMALS),
            round(scores.relevance[position], DECIMALS),
            tuple(shares),
            self._lexical.matched_terms(scores.terms, slot),
            self._graph.links(slot),
        )


def _unit_number(unit: Unit) -> int:
    # Summed over all units, so that the digest of the index does not depend on the order of updates.
    return int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(_unit_bytes(unit))).digest())


def _unit_bytes(unit: Unit) -> tuple[bytes, ...]:
    texts = (unit.id, unit.name, unit.description, unit.content, *unit.triggers)
    return tuple(text.encode(errors="surrogatepass") for text in texts)
