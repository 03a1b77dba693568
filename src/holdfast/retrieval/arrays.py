"""The arithmetic of a search on numpy arrays: the same operations in the same order as on lists, so the same results.

Loaded on demand, because numpy is an extra and takes longer to load than many searches take without it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.bm25 import BM25_B, BM25_K1

_SLOTS_AT_FIRST = 1_024
_GROUPS_PER_RANK = 16


class PostingArrays:
    """The postings of terms as arrays, made when a query first has the term and dropped when one of its units changes.

    An update costs time for the terms of its unit only: what depends on the mean length of all units is computed again
    when a query has the term.
    """

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._lengths: NDArray[np.float64] = np.zeros(max(lengths, default=0) + _SLOTS_AT_FIRST)
        self._by_term: dict[str, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}
        # The frequencies of a term's units, damped by length, for the mean length beside them.
        self._damped: dict[str, tuple[float, NDArray[np.float64]]] = {}
        for slot, length in lengths.items():
            self._lengths[slot] = length

    def update(self, slot: int, terms: Iterable[str], length: int) -> None:
        for term in terms:
            self._by_term.pop(term, None)
            self._damped.pop(term, None)
        if slot >= len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros(slot + 1)])
        self._lengths[slot] = length

    def score_postings(
        self, postings: Iterable[tuple[str, Mapping[int, int], float]], mean_length: float, *, slots: int
    ) -> Any:
        """Scores by slot, of the terms with the units that contain them and their weights."""
        scores = np.zeros(slots)
        for term, holders, weight in postings:
            if (arrays := self._by_term.get(term)) is None:
                term_slots = np.fromiter(holders.keys(), np.intp, len(holders))
                arrays = self._by_term[term] = term_slots, np.fromiter(holders.values(), np.float64, len(holders))
            term_slots, counts = arrays
            mean_of_damped, damped = self._damped.get(term, (None, counts))
            if mean_of_damped != mean_length:
                length_factors = 1 - BM25_B + BM25_B * self._lengths[term_slots] / mean_length
                damped = counts / (counts + BM25_K1 * length_factors)
                self._damped[term] = mean_length, damped
            scores[term_slots] += weight * damped
        return scores


class ArrayArithmetic:
    """`ListArithmetic` on arrays."""

    def list_slots(self, slots: Iterable[int]) -> Any:
        return np.fromiter(slots, np.intp)

    def scale(self, scores: Sequence[float], lowest: float) -> Any:
        values = np.asarray(scores, np.float64)
        best = float(values.max(initial=0.0))
        if best <= lowest:
            return np.where((values >= best) & (best > 0), 1.0, 0.0)
        return np.maximum(0.0, values - lowest) / (best - lowest)

    def find_low_median(self, values: Sequence[float], slots: Sequence[int]) -> float:
        middle = (len(slots) - 1) // 2
        return float(np.partition(np.asarray(values, np.float64)[slots], middle)[middle])

    def spread(self, values: Mapping[int, float], count: int) -> Any:
        spread = np.zeros(count)
        for slot, value in values.items():
            spread[slot] = value
        return spread

    def add_weighted(self, weights: Sequence[float], columns: Sequence[Sequence[float]]) -> Any:
        first, second, third = (weight * np.asarray(column) for weight, column in zip(weights, columns, strict=True))
        return first + second + third

    def mean_of(self, first: Sequence[float], second: Sequence[float]) -> Any:
        return (np.asarray(first) + np.asarray(second)) / 2

    def multiply(self, values: Sequence[float], factor: float) -> Any:
        return factor * np.asarray(values)

    def select_from(self, slots: Any, values: Any, lowest: float) -> Any:
        return slots[values[slots] >= lowest]

    def find_bound(self, slots: Any, values: Any, rank: int) -> float:
        # Of groups of values, at least `rank` have a maximum as large as the one with this rank: so have `rank` values.
        # Selecting among all of them takes ten times as long.
        chosen = values[slots]
        size = max(1, len(chosen) // (_GROUPS_PER_RANK * rank))
        groups = chosen[: len(chosen) // size * size].reshape(-1, size).max(axis=1)
        return float(np.partition(groups, len(groups) - rank)[len(groups) - rank])


ARITHMETIC = ArrayArithmetic()
