"""The search index: ranks the units of a collection for a query, best first, and explains the ranking.

Three stages score each unit: by words, by meaning, and by links to units that score well. Their scores are fused by
weights.
"""

import hashlib
import heapq
import importlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_low
from typing import cast

import msgspec

from holdfast.errors import UserError
from holdfast.retrieval.bm25 import LexicalStage, count_terms, make_trigger_keys
from holdfast.retrieval.encoders.registry import NO_MODEL, SemanticStage
from holdfast.retrieval.units import SearchUnit, join_unit_text

SEARCH_LIMIT_DEFAULT = 10
DECIMALS = 6  # Scores are rounded before sorting, so that rounding noise cannot change the order.
SUM_TOLERANCE = 0.001
QUERY_CHARACTERS_MAX = 8_000  # Bounds the time of one search.
FLOOR_LEXICAL = 0.035
"""Calibrated: 49 of 50 right answers are more relevant, on nine query sets in which every query has an answer."""

STAGES = ("lexical", "semantic", "graph")
_DIGEST_MODULUS = 1 << 256


class StageContribution(msgspec.Struct, frozen=True, gc=False):
    """The contribution of one stage: its own score (0 to 1 among the units), and what that adds to the total."""

    stage: str
    score: float
    contribution: float


class SearchHit(msgspec.Struct, frozen=True, gc=False):
    """`score` (0 to 1) orders within one result; `relevance` (0 to 1) is comparable between queries; floors use it."""

    id: str
    score: float
    relevance: float
    stages: tuple[StageContribution, ...] = ()
    matched_terms: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class StageWeights(msgspec.Struct, frozen=True):
    """The weight of each stage; they sum to 1."""

    # The defaults of seed 003.
    lexical: float = 0.35
    semantic: float = 0.50
    graph: float = 0.15

    def __post_init__(self) -> None:
        values = (self.lexical, self.semantic, self.graph)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise UserError("weights must be numbers from 0 to 1")
        if abs(sum(values) - 1) > SUM_TOLERANCE:
            raise UserError(f"the weights lexical, semantic and graph must sum to 1, not to {sum(values):.3f}")

    def scale_lexical(self, share: float) -> "StageWeights":
        """The lexical stage keeps a share of its weight, the semantic one gets the rest; no change if either is 0."""
        if not (self.lexical and self.semantic):
            return self
        return StageWeights(self.lexical * share, self.semantic + self.lexical * (1 - share), self.graph)

    def drop_semantic(self) -> "StageWeights":
        """The other two in the same proportion; lexical alone if both are 0."""
        rest = self.lexical + self.graph
        return StageWeights(self.lexical / rest, 0.0, self.graph / rest) if rest > 0 else StageWeights(1.0, 0.0, 0.0)


class SearchResult(msgspec.Struct, frozen=True):
    """The best units, best first; `dropped` would be among them if they were not below the floor."""

    hits: tuple[SearchHit, ...]
    dropped: tuple[SearchHit, ...]
    floor: float
    weights: StageWeights
    embedding_model_version: str


class RankedUnit(msgspec.Struct, frozen=True):
    """A unit's position in a ranking, without the explanation."""

    id: str
    score: float
    relevance: float


class Ranking(msgspec.Struct, frozen=True):
    """All units, best first; `explain` computes the explanation of one unit on request."""

    units: tuple[RankedUnit, ...]
    explain: Callable[[str], SearchHit]


class _QueryScores(msgspec.Struct, frozen=True):
    """The scores of all units for one query, by slot: per stage, fused, and as relevance. `slots` are those in use."""

    terms: tuple[str, ...]
    weights: StageWeights
    arithmetic: "ListArithmetic"
    slots: Sequence[int]
    stages: tuple[Sequence[float], Sequence[float], Sequence[float]]
    score: Sequence[float]
    relevance: Sequence[float]


class SearchIndex:
    """Units by id. Updates are incremental, and results do not depend on the order of updates."""

    def __init__(self, units: Iterable[SearchUnit] = (), *, meaning: SemanticStage | None = None) -> None:
        self._semantic = meaning
        self._lexical = LexicalStage()
        self._graph = GraphStage()
        self._slots: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._free: list[int] = []
        self._units: dict[str, SearchUnit] = {}
        self._digest = 0
        self._slots_in_use: Sequence[int] | None = None
        self.add(units)

    @property
    def embedding_model_version(self) -> str:
        return self._semantic.model_version if self._semantic is not None else NO_MODEL

    @property
    def floor(self) -> float:
        """The relevance below which a unit is filler, calibrated for the available stages."""
        return FLOOR_LEXICAL if self._semantic is None else self._semantic.floor

    @property
    def digest(self) -> str:
        """Equal for equal units and the same model, whatever the order of updates."""
        text = f"{self._digest:064x} {self.embedding_model_version}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, unit_id: object) -> bool:
        return unit_id in self._slots

    def add(self, units: Iterable[SearchUnit]) -> None:
        """Add units; a unit with an existing id replaces the old one."""
        added: dict[int, SearchUnit] = {}
        for unit in {unit.id: unit for unit in units}.values():
            if self._units.get(unit.id) == unit:
                continue
            self.remove((unit.id,))
            slot = self._free.pop() if self._free else len(self._ids)
            if slot == len(self._ids):
                self._ids.append(None)
            self._ids[slot] = unit.id
            self._slots_in_use = None
            self._slots[unit.id] = slot
            self._units[unit.id] = unit
            self._digest = (self._digest + _unit_number(unit)) % _DIGEST_MODULUS
            self._lexical.add(slot, join_unit_text(unit))
            self._graph.add(slot, unit)
            added[slot] = unit
        if self._semantic is not None:
            self._semantic.add(added)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove units; unknown ids are ignored."""
        for unit_id in ids:
            if (slot := self._slots.pop(unit_id, None)) is None:
                continue
            self._digest = (self._digest - _unit_number(self._units.pop(unit_id))) % _DIGEST_MODULUS
            self._ids[slot] = None
            self._slots_in_use = None
            self._free.append(slot)
            self._lexical.remove(slot)
            self._graph.remove(slot)
            if self._semantic is not None:
                self._semantic.remove(slot)

    def search(
        self,
        query: str,
        *,
        limit: int = SEARCH_LIMIT_DEFAULT,
        weights: StageWeights | None = None,
        floor: float | None = None,
    ) -> SearchResult:
        """The best `limit` units; a `floor` of 0 accepts everything, None uses the calibrated one."""
        floor_used = self.floor if floor is None else floor
        scores = self._score_units(query, weights)
        best = self._best_slots(scores, scores.slots, max(0, limit))
        below_floor = [slot for slot in best if scores.relevance[slot] < floor_used]
        if below_floor:
            relevant = scores.arithmetic.select_from(scores.slots, scores.relevance, floor_used)
            best = self._best_slots(scores, relevant, max(0, limit))
        hits, dropped = (tuple(self._explain(scores, slot) for slot in slots) for slots in (best, below_floor))
        return SearchResult(hits, dropped, floor_used, scores.weights, self.embedding_model_version)

    def rank(self, query: str, *, weights: StageWeights | None = None) -> Ranking:
        """All units in the order of `search`, without a floor; `explain` is valid until a unit changes."""
        scores = self._score_units(query, weights)
        order = self._best_slots(scores, scores.slots, len(self._slots))
        units = (
            RankedUnit(
                self._id_of(slot),
                round(float(scores.score[slot]), DECIMALS),
                round(float(scores.relevance[slot]), DECIMALS),
            )
            for slot in order
        )
        return Ranking(tuple(units), lambda unit_id: self._explain(scores, self._slots[unit_id]))

    def _score_units(self, query: str, weights: StageWeights | None) -> _QueryScores:
        weights = weights if weights is not None else StageWeights()
        if self._semantic is None:
            weights = weights.drop_semantic()
        else:
            weights = weights.scale_lexical(self._semantic.words_share)
        query = query[:QUERY_CHARACTERS_MAX]
        terms = count_terms(query)
        match = self._lexical.match(terms, slots=len(self._ids))
        arithmetic = _choose_arithmetic(match.scores)
        if self._slots_in_use is None or isinstance(self._slots_in_use, list):
            self._slots_in_use = arithmetic.list_slots(self._slots.values())
        slots = self._slots_in_use
        lexical = arithmetic.scale(match.scores, 0.0)
        semantic = arithmetic.spread({}, len(self._ids))
        # Relevance must be comparable between queries: the share of the best possible word score, averaged with the
        # similarity if there are vectors.
        relevance = arithmetic.multiply(match.scores, 1 / match.best_possible if match.best_possible else 0.0)
        if self._semantic is not None and self._slots:
            similarities = self._semantic.match(query, slots=len(self._ids))
            # Spread from the median up: the less similar half carries no information about the rest.
            semantic = arithmetic.scale(similarities, arithmetic.find_low_median(similarities, slots))
            relevance = arithmetic.mean_of(relevance, similarities)
        graph = arithmetic.spread(self._graph_scores(lexical, semantic, weights), len(self._ids))
        stages = lexical, semantic, graph
        score = arithmetic.add_weighted((weights.lexical, weights.semantic, weights.graph), stages)
        return _QueryScores(tuple(terms), weights, arithmetic, slots, stages, score, relevance)

    def _best_slots(self, scores: _QueryScores, slots: Sequence[int], limit: int) -> list[int]:
        """The slots of the best units, by rounded score, then by id."""
        score, arithmetic = scores.score, scores.arithmetic
        if len(slots) > limit > 0:
            # Sort only the units that can tie with the last of the best after rounding.
            threshold = arithmetic.find_bound(slots, score, limit) - 10**-DECIMALS
            if threshold < 0:
                return self._best_of_few(scores, slots, limit)
            slots = arithmetic.select_from(slots, score, threshold)
        ranked = sorted((-round(float(score[slot]), DECIMALS), self._id_of(slot), int(slot)) for slot in slots)
        return [slot for _, _, slot in ranked[:limit]]

    def _best_of_few(self, scores: _QueryScores, slots: Sequence[int], limit: int) -> list[int]:
        """The same where fewer units than `limit` match: the others all score 0, so that their ids order them."""
        matching = scores.arithmetic.select_from(slots, scores.score, sys.float_info.min)
        rounded = {self._id_of(slot): round(float(scores.score[slot]), DECIMALS) for slot in matching}
        ranked = sorted((-score, unit_id) for unit_id, score in rounded.items() if score)[:limit]
        best = {unit_id: None for _, unit_id in ranked}
        ids = cast("list[str]", self._ids)  # A slot in use has one.
        # Some of the first ids are those of units that match.
        for unit_id in heapq.nsmallest(limit + len(best), map(ids.__getitem__, slots)):
            if len(best) < limit:
                best.setdefault(unit_id)
        return [self._slots[unit_id] for unit_id in best]

    def _id_of(self, slot: int) -> str:
        unit_id = self._ids[slot]
        assert unit_id is not None, "a slot in use has no unit"
        return unit_id

    def _graph_scores(
        self, lexical: Sequence[float], semantic: Sequence[float], weights: StageWeights
    ) -> dict[int, float]:
        if not weights.graph:
            return {}
        rest = weights.lexical + weights.semantic
        lexical_share, semantic_share = (weights.lexical / rest, weights.semantic / rest) if rest > 0 else (0.5, 0.5)
        return self._graph.score_neighbours(
            lambda slot: float(lexical_share * lexical[slot] + semantic_share * semantic[slot])
        )

    def _explain(self, scores: _QueryScores, slot: int) -> SearchHit:
        weights = scores.weights
        columns = zip(STAGES, (weights.lexical, weights.semantic, weights.graph), scores.stages, strict=True)
        shares = [
            StageContribution(stage, score := float(stage_scores[slot]), weight * score)
            for stage, weight, stage_scores in columns
            if stage != "semantic" or self._semantic is not None
        ]
        return SearchHit(
            self._id_of(slot),
            round(float(scores.score[slot]), DECIMALS),
            round(float(scores.relevance[slot]), DECIMALS),
            tuple(shares),
            self._lexical.matched_terms(scores.terms, slot),
            self._graph.links(slot),
        )


def _choose_arithmetic(scores: Sequence[float]) -> "ListArithmetic":
    if isinstance(scores, list):
        return LISTS
    arithmetic: ListArithmetic = importlib.import_module("holdfast.retrieval.arrays").ARITHMETIC
    return arithmetic


def _unit_number(unit: SearchUnit) -> int:
    # Summed over all units, so that the digest of the index does not depend on the order of updates.
    texts = (unit.id, unit.name, unit.description, unit.content, *unit.triggers)
    encoded = [text.encode(errors="surrogatepass") for text in texts]
    return int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(encoded)).digest())


def scale_scores(scores: Sequence[float], *, lowest: float | None = None) -> list[float]:
    """Scale scores to 0 for the worst (or `lowest` and below) and 1 for the best, if that is above 0."""
    best = max(scores, default=0.0)
    worst = min(scores, default=0.0) if lowest is None else lowest
    if best <= worst:
        return [1.0 if score >= best > 0 else 0.0 for score in scores]
    width = best - worst
    return [max(0.0, score - worst) / width for score in scores]


class ListArithmetic:
    """What a search computes over all units, on lists by slot; `retrieval/arrays.py` has the same on arrays."""

    def list_slots(self, slots: Iterable[int]) -> Sequence[int]:
        return list(slots)

    def scale(self, scores: Sequence[float], lowest: float) -> Sequence[float]:
        return scale_scores(scores, lowest=lowest)

    def find_low_median(self, values: Sequence[float], slots: Sequence[int]) -> float:
        return median_low([values[slot] for slot in slots])

    def spread(self, values: Mapping[int, float], count: int) -> Sequence[float]:
        """A list by slot, 0 where there is no value."""
        spread = [0.0] * count
        for slot, value in values.items():
            spread[slot] = value
        return spread

    def add_weighted(self, weights: Sequence[float], columns: Sequence[Sequence[float]]) -> Sequence[float]:
        by_words, by_meaning, by_links = weights
        rows = zip(*columns, strict=True)
        return [by_words * words + by_meaning * meaning + by_links * links for words, meaning, links in rows]

    def mean_of(self, first: Sequence[float], second: Sequence[float]) -> Sequence[float]:
        return [(one + other) / 2 for one, other in zip(first, second, strict=True)]

    def multiply(self, values: Sequence[float], factor: float) -> Sequence[float]:
        return [factor * value for value in values]

    def select_from(self, slots: Sequence[int], values: Sequence[float], lowest: float) -> Sequence[int]:
        """The slots whose value is at least `lowest`."""
        return [slot for slot in slots if values[slot] >= lowest]

    def find_bound(self, slots: Sequence[int], values: Sequence[float], rank: int) -> float:
        """A lower bound for the value with this rank, 1 being the largest, that few values reach."""
        return heapq.nlargest(rank, (values[slot] for slot in slots))[-1]


LISTS = ListArithmetic()

# `name`, [[name]], [text](name) and addresses such as instruction:local/agent/name/v1. A bare word is no reference.
# Lengths are bounded, so that a text full of brackets cannot slow the match down.
_REFERENCE = re.compile(
    r"`([^`\s]{1,400})`|\[\[([^\]\n]{1,400})\]\]|\]\(([^)\s]{1,400})\)|\b([a-z]+:[^\s`\])>\"']{1,600})"
)


FitOfSlot = Callable[[int], float]


class _Fits(dict[int, float]):
    """How well units fit a query, computed for those with links only."""

    def __init__(self, fit: FitOfSlot) -> None:
        self._fit = fit

    def __missing__(self, slot: int) -> float:
        value = self[slot] = self._fit(slot)
        return value


class GraphStage:
    """A unit gets the score of its best neighbour, damped by the number of units that share the link."""

    def __init__(self) -> None:
        self._by_trigger: dict[str, set[int]] = {}
        self._by_name: dict[str, set[int]] = {}
        self._by_reference: dict[str, set[int]] = {}
        self._keys: dict[int, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {}
        # Kept up to date with each unit, so that a search looks at links and not at all units.
        self._shared_triggers: set[str] = set()
        self._linked_names: set[str] = set()

    def add(self, slot: int, unit: SearchUnit) -> None:
        names_of_unit = frozenset(name for name in (unit.id, unit.name) if name)
        references = find_references(f"{unit.description}\n{unit.content}") - names_of_unit
        keys = self._keys[slot] = (make_trigger_keys(unit.triggers), names_of_unit, references)
        for table, names in zip(self._tables(), keys, strict=True):
            for name in names:
                table.setdefault(name, set()).add(slot)
        self._update_links(keys)

    def remove(self, slot: int) -> None:
        keys = self._keys.pop(slot)
        for table, names in zip(self._tables(), keys, strict=True):
            for name in names:
                table[name].discard(slot)
                if not table[name]:
                    del table[name]
        self._update_links(keys)

    def _update_links(self, keys: tuple[frozenset[str], frozenset[str], frozenset[str]]) -> None:
        triggers, names, references = keys
        for trigger in triggers:
            is_shared = len(self._by_trigger.get(trigger, ())) > 1
            (self._shared_triggers.add if is_shared else self._shared_triggers.discard)(trigger)
        for name in names | references:
            is_linked = name in self._by_name and name in self._by_reference
            (self._linked_names.add if is_linked else self._linked_names.discard)(name)

    def score_neighbours(self, fit: "FitOfSlot") -> dict[int, float]:
        """For each unit with neighbours, the score of the best one, damped by how many there are."""
        reached: dict[int, float] = {}
        fits = _Fits(fit)
        for trigger in self._shared_triggers:
            members = self._by_trigger[trigger]
            _propagate(reached, fits, members, members)
        for name in self._linked_names:
            _propagate(reached, fits, self._by_reference[name], self._by_name[name])
            _propagate(reached, fits, self._by_name[name], self._by_reference[name])
        return reached

    def links(self, slot: int) -> tuple[str, ...]:
        """The shared triggers and names that link a unit to others, sorted."""
        if not (self._shared_triggers or self._linked_names):
            return ()
        triggers, names, referenced = self._keys[slot]
        keys = [key for key in triggers if len(self._by_trigger[key]) > 1]
        keys += [name for name in names if name in self._by_reference]
        keys += [name for name in referenced if name in self._by_name]
        return tuple(sorted(set(keys)))

    def _tables(self) -> tuple[dict[str, set[int]], dict[str, set[int]], dict[str, set[int]]]:
        return self._by_trigger, self._by_name, self._by_reference


def find_references(text: str) -> frozenset[str]:
    names = (next(part for part in match if part) for match in _REFERENCE.findall(text))
    return frozenset(name.rstrip(".,;") for name in names)


def _propagate(reached: dict[int, float], fits: Mapping[int, float], sources: set[int], targets: set[int]) -> None:
    """Each target gets the best score among the other sources; the two best sources suffice for that."""
    # 1 / (1 + ln n), with n the number of sources other than the target itself.
    damping = 1 / (1 + math.log(max(1, len(sources - targets) or len(sources) - 1)))
    best = sorted(sources, key=fits.__getitem__, reverse=True)[:2]
    for target in targets:
        source = next((slot for slot in best if slot != target), None)
        if source is not None:
            reached[target] = max(reached.get(target, 0.0), fits[source] * damping)
