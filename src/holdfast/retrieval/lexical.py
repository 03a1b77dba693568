"""How well the words of a query fit each unit: BM25, kept up to date one unit at a time."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.retrieval.words import counted_terms, terms

SATURATION = 1.5
LENGTH_SHARE = 0.75
"""The usual k1 and b of BM25; neither was fitted to anything."""


class LexicalMatch(msgspec.Struct, frozen=True):
    """BM25 by slot, and the most that a unit made of nothing but the query could reach."""

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

    def match(self, wanted: Mapping[str, int]) -> LexicalMatch:
        """By stems and how often each is asked for; the same sums in the same order, whatever was added before."""
        scores: dict[int, float] = {}
        possible = 0.0
        mean_length = self._length_sum / len(self._lengths) if self._length_sum else 1.0
        for term, times in wanted.items():
            holders = self._counts.get(term, {})
            worth = times * self._rarity(len(holders)) * (SATURATION + 1)
            possible += worth
            for slot, count in holders.items():
                length = 1 - LENGTH_SHARE + LENGTH_SHARE * self._lengths[slot] / mean_length
                scores[slot] = scores.get(slot, 0.0) + worth * count / (count + SATURATION * length)
        return LexicalMatch(scores, possible)

    def matched_terms(self, query_terms: Iterable[str], slot: int) -> tuple[str, ...]:
        held = self._terms[slot]
        return tuple(term for term in query_terms if term in held)

    def _rarity(self, holders: int) -> float:
        return math.log(1 + (len(self._lengths) - holders + 0.5) / (holders + 0.5))


def trigger_keys(triggers: Iterable[str]) -> frozenset[str]:
    """Triggers that say the same have the same key."""
    return frozenset(key for trigger in triggers if (key := " ".join(sorted(set(terms(trigger))))))
