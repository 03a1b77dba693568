"""Which units of a collection fit a query, best first, and why."""

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
QUERY_CHARACTERS_MAX = 8_000
FLOOR_LEXICAL = 0.035
"""Forty-nine of fifty right answers are more relevant, on nine sets of queries that all have an answer."""
_DIGEST_MODULUS = 1 << 256


class Share(msgspec.Struct, frozen=True):
    """What one stage says of a unit: its own score, 0 to 1 among the units, and what that adds to the unit's score."""

    stage: str
    fit: float
    added: float


class Found(msgspec.Struct, frozen=True):
    """`score` orders, 0 to 1 within an answer; `relevance`, 0 to 1, compares between queries, and floors go by it."""

    id: str
    score: float
    relevance: float
    shares: tuple[Share, ...] = ()
    matched_terms: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """The best units, best first; `dropped` are those that would be among them, were they not below the floor."""

    found: tuple[Found, ...]
    dropped: tuple[Found, ...]
    floor: float
    weights: Weights
    embedding_model_version: str


class Place(msgspec.Struct, frozen=True):
    """Where a unit stands, without why."""

    id: str
    score: float
    relevance: float


class Ranking(msgspec.Struct, frozen=True):
    """All units, best first; why one of them stands where it does costs something only for those who ask."""

    places: tuple[Place, ...]
    why: Callable[[str], Found]


class _Fits(msgspec.Struct, frozen=True):
    """What one query says of all units: stage by stage, fused, and as floors see it."""

    terms: tuple[str, ...]
    weights: Weights
    slots: list[int]
    stages: tuple[list[float], list[float], list[float]]
    score: list[float]
    relevance: list[float]


class Index:
    """Units by id. A change costs what the changed units cost, and the order of changes is nowhere seen."""

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
        """The relevance below which a unit is filler, as calibrated for the stages that there are."""
        return FLOOR_LEXICAL if self._meaning is None else self._meaning.floor

    @property
    def digest(self) -> str:
        """The same for the same units and the same model."""
        text = f"{self._digest:064x} {self.embedding_model_version}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, unit_id: object) -> bool:
        return unit_id in self._slots

    def add(self, units: Iterable[Unit]) -> None:
        """A unit with an id that is there already takes its place."""
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
            self._digest = (self._digest + _number(unit)) % _DIGEST_MODULUS
            self._lexical.add(slot, whole_text(unit))
            self._graph.add(slot, unit)
            if self._meaning is not None:
                self._meaning.add(slot, unit)

    def remove(self, ids: Iterable[str]) -> None:
        """Ids that are not there are left alone."""
        for unit_id in ids:
            if (slot := self._slots.pop(unit_id, None)) is None:
                continue
            self._digest = (self._digest - _number(self._units.pop(unit_id))) % _DIGEST_MODULUS
            self._ids[slot] = None
            self._free.append(slot)
            self._lexical.remove(slot)
            self._graph.remove(slot)
            if self._meaning is not None:
                self._meaning.remove(slot)

    def search(
        self, query: str, *, limit: int = LIMIT, weights: Weights | None = None, floor: float | None = None
    ) -> Answer:
        """The best `limit` units; a `floor` of 0 lets everything pass, None is the calibrated one."""
        least = self.floor if floor is None else floor
        fits = self._fits(query, weights)
        passing = [at for at, relevance in enumerate(fits.relevance) if relevance >= least]
        found = self._best(fits.score, passing, max(0, limit))
        first = self._best(fits.score, range(len(fits.slots)), max(0, limit))
        return Answer(
            tuple(self._told(fits, at) for at in found),
            tuple(self._told(fits, at) for at in first if fits.relevance[at] < least),
            least,
            fits.weights,
            self.embedding_model_version,
        )

    def rank(self, query: str, *, weights: Weights | None = None) -> Ranking:
        """The same order as that of `search`, of all units and without a floor; `why` holds until a unit changes."""
        fits = self._fits(query, weights)
        ids = list(self._slots)
        order = self._best(fits.score, range(len(ids)), len(ids))
        places = (Place(ids[at], round(fits.score[at], DECIMALS), round(fits.relevance[at], DECIMALS)) for at in order)
        return Ranking(tuple(places), lambda unit_id: self._told(fits, ids.index(unit_id)))

    def _fits(self, query: str, weights: Weights | None) -> _Fits:
        weights = weights if weights is not None else Weights()
        if self._meaning is None:
            weights = weights.without_semantic()
        else:
            weights = weights.with_words_at(self._meaning.words_share)
        query = query[:QUERY_CHARACTERS_MAX]
        slots = list(self._slots.values())
        terms = counted_terms(query)
        match = self._lexical.match(terms)
        words = [match.scores.get(slot, 0.0) for slot in slots]
        near = self._near(query, slots)
        lexical = spread(words, lowest=0.0)
        # The farther half of the units says nothing of how near the nearer half is.
        semantic = spread(near, lowest=median_low(near) if near else None)
        graph = self._reached(slots, lexical, semantic, weights)
        score = [
            weights.lexical * a + weights.semantic * b + weights.graph * c
            for a, b, c in zip(lexical, semantic, graph, strict=True)
        ]
        # What compares between queries: the share of the query that a unit's words make up, and its nearness.
        share = 1 / match.best_possible if match.best_possible else 0.0
        relevance = [share * one for one in words]
        if self._meaning is not None:
            relevance = [(a + b) / 2 for a, b in zip(relevance, near, strict=True)]
        return _Fits(tuple(terms), weights, slots, (lexical, semantic, graph), score, relevance)

    def _best(self, score: list[float], among: Sequence[int], limit: int) -> list[int]:
        """Places of the best, by the score as it is told, then by id."""
        if len(among) > limit > 0:
            # Only what rounds to as much as the last of the best can tie with it.
            least = heapq.nlargest(limit, (score[at] for at in among))[-1] - 10**-DECIMALS
            among = [at for at in among if score[at] >= least]
        ids = list(self._slots) if among else []
        return sorted(among, key=lambda at: (-round(score[at], DECIMALS), ids[at]))[:limit]

    def _near(self, query: str, slots: list[int]) -> list[float]:
        if self._meaning is None:
            return [0.0] * len(slots)
        near = self._meaning.match(query, slots=len(self._ids))
        return [near[slot] for slot in slots]

    def _reached(self, slots: list[int], lexical: list[float], semantic: list[float], weights: Weights) -> list[float]:
        if not weights.graph:
            return [0.0] * len(slots)
        rest = weights.lexical + weights.semantic
        words, near = (weights.lexical / rest, weights.semantic / rest) if rest > 0 else (0.5, 0.5)
        reached = self._graph.reach(
            {slot: words * a + near * b for slot, a, b in zip(slots, lexical, semantic, strict=True)}
        )
        return [reached.get(slot, 0.0) for slot in slots]

    def _told(self, fits: _Fits, at: int) -> Found:
        slot = fits.slots[at]
        unit_id = self._ids[slot]
        assert unit_id is not None, "a slot in use has no unit"
        shares = (
            Share(stage, fit[at], weight * fit[at])
            for stage, weight, fit in zip(
                fits.weights.__struct_fields__, msgspec.structs.astuple(fits.weights), fits.stages, strict=True
            )
            if stage != "semantic" or self._meaning is not None
        )
        return Found(
            unit_id,
            round(fits.score[at], DECIMALS),
            round(fits.relevance[at], DECIMALS),
            tuple(shares),
            self._lexical.matched_terms(fits.terms, slot),
            self._graph.links(slot),
        )


def _number(unit: Unit) -> int:
    return int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(_sendable(unit))).digest())


def _sendable(unit: Unit) -> tuple[bytes, ...]:
    texts = (unit.id, unit.name, unit.description, unit.content, *unit.triggers)
    return tuple(text.encode(errors="surrogatepass") for text in texts)
