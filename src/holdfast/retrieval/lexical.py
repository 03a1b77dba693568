"""Lexical scores: BM25, updated incrementally."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.retrieval.words import counted_terms, terms

SATURATION = 1.5
LENGTH_SHARE = 0.75
"""The usual k1 and b of BM25, not fitted to any data."""


class LexicalMatch(msgspec.Struct, frozen=True):
    """BM25 scores by slot, and the upper bound for a unit that consists of the query alone."""

    scores: dict[int, float]
    best_possible: float


class LexicalStage:
    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}
        self._terms: dict[int, Counter[str]] = {}
        self._lengths: dict[int, int] = {}
        self._length_sum = 0

    def add(self, slot: int, text: str) -> None:
        counted = counted_terms(text)
        self._terms[slot] = counted
        self._lengths[slot] = counted.total()
        self._length_sum += counted.total()
        for term, count in counted.items():
            self._counts.setdefault(term, {})[slot] = count

    def remove(self, slot: int) -> None:
        self._length_sum -= self._lengths.pop(slot)
        for term in self._terms.pop(slot):
            holders = self._counts[term]
            del holders[slot]
            if not holders:
                del self._counts[term]

    def match(self, query_counts: Mapping[str, int]) -> LexicalMatch:
        """Scores for query stems with their counts; sums are formed in query order, so results are reproducible."""
        scores: dict[int, float] = {}
        best_possible = 0.0
        mean_length = self._length_sum / len(self._lengths) if self._length_sum else 1.0
        for term, query_count in query_counts.items():
            holders = self._counts.get(term, {})
            # weight = query_count * idf * (k1 + 1); a unit adds weight * tf / (tf + k1 * (1 - b + b * length / mean)).
            weight = query_count * self._inverse_document_frequency(len(holders)) * (SATURATION + 1)
            best_possible += weight
            for slot, count in holders.items():
                length_factor = 1 - LENGTH_SHARE + LENGTH_SHARE * self._lengths[slot] / mean_length
                scores[slot] = scores.get(slot, 0.0) + weight * count / (count + SATURATION * length_factor)
        return LexicalMatch(scores, best_possible)

    def matched_terms(self, query_terms: Iterable[str], slot: int) -> tuple[str, ...]:
        unit_terms = self._terms[slot]
        return tuple(term for term in query_terms if term in unit_terms)

    def _inverse_document_frequency(self, holders: int) -> float:
        return math.log(1 + (len(self._lengths) - holders + 0.5) / (holders + 0.5))


def trigger_keys(triggers: Iterable[str]) -> frozenset[str]:
    """Keys of the triggers; triggers with the same stems have the same key."""
    return frozenset(key for trigger in triggers if (key := " ".join(sorted(set(terms(trigger))))))
