"""Lexical scores: BM25, updated incrementally, over stems without stop words."""

import importlib
import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import Stemmer

BM25_K1 = 1.5
BM25_B = 0.75
"""The usual k1 and b of BM25, not fitted to any data."""
POSTINGS_WITHOUT_ARRAYS_MAX = 200_000
"""Postings scored one by one before numpy is loaded: that takes about as long as loading it does, 0.1 s."""

if TYPE_CHECKING:
    from holdfast.retrieval.arrays import PostingArrays


class LexicalMatch(msgspec.Struct, frozen=True):
    """BM25 scores by slot, and the upper bound for a unit that consists of the query alone.

    The scores are an array of numpy where that is loaded, else a list.
    """

    scores: Sequence[float]
    best_possible: float


class LexicalStage:
    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}
        self._terms: dict[int, Counter[str]] = {}
        self._lengths: dict[int, int] = {}
        self._length_sum = 0
        self._postings_scored = 0
        self._arrays: PostingArrays | None = None

    def add(self, slot: int, text: str) -> None:
        counted = count_terms(text)
        self._terms[slot] = counted
        self._lengths[slot] = counted.total()
        self._length_sum += counted.total()
        for term, count in counted.items():
            self._counts.setdefault(term, {})[slot] = count
        if self._arrays is not None:
            self._arrays.update(slot, counted, counted.total())

    def remove(self, slot: int) -> None:
        self._length_sum -= self._lengths.pop(slot)
        counted = self._terms.pop(slot)
        if self._arrays is not None:
            self._arrays.update(slot, counted, 0)
        for term in counted:
            holders = self._counts[term]
            del holders[slot]
            if not holders:
                del self._counts[term]

    def match(self, query_counts: Mapping[str, int], *, slots: int) -> LexicalMatch:
        """Scores for query stems with their counts; sums are formed in query order, so results are reproducible."""
        self._load_arrays_if_due()
        mean_length = self._length_sum / len(self._lengths) if self._length_sum else 1.0
        postings, best_possible = [], 0.0
        for term, query_count in query_counts.items():
            holders = self._counts.get(term, {})
            # weight = query_count * idf * (k1 + 1); a unit adds weight * tf / (tf + k1 * (1 - b + b * length / mean)).
            weight = query_count * self._inverse_document_frequency(len(holders)) * (BM25_K1 + 1)
            postings.append((term, holders, weight))
            best_possible += weight
            self._postings_scored += len(holders)
        if self._arrays is not None:
            return LexicalMatch(self._arrays.score_postings(postings, mean_length, slots=slots), best_possible)
        scores = [0.0] * slots
        for _, holders, weight in postings:
            for slot, count in holders.items():
                length_factor = 1 - BM25_B + BM25_B * self._lengths[slot] / mean_length
                scores[slot] += weight * (count / (count + BM25_K1 * length_factor))
        return LexicalMatch(scores, best_possible)

    def _load_arrays_if_due(self) -> None:
        if self._arrays is not None or not (
            "numpy" in sys.modules or self._postings_scored > POSTINGS_WITHOUT_ARRAYS_MAX
        ):
            return
        self._postings_scored = 0
        if importlib.util.find_spec("numpy") is not None:
            self._arrays = importlib.import_module("holdfast.retrieval.arrays").PostingArrays(self._lengths)

    def matched_terms(self, query_terms: Iterable[str], slot: int) -> tuple[str, ...]:
        unit_terms = self._terms[slot]
        return tuple(term for term in query_terms if term in unit_terms)

    def _inverse_document_frequency(self, holders: int) -> float:
        return math.log(1 + (len(self._lengths) - holders + 0.5) / (holders + 0.5))


def make_trigger_keys(triggers: Iterable[str]) -> frozenset[str]:
    """Keys of the triggers; triggers with the same stems have the same key."""
    return frozenset(key for trigger in triggers if (key := " ".join(sorted(set(extract_terms(trigger))))))


WORDS_CACHED_MAX = 100_000
_WORDS = re.compile(r"[^\W_]+")

# Words of questions and requests rather than of their topic; written by hand, not fitted to any queries.
STOP_WORDS = frozenset(
    {
        *("a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "but", "by", "can", "could", "do"),
        *("does", "for", "from", "had", "has", "have", "how", "i", "if", "in", "into", "is", "it", "me", "my"),
        *("no", "not", "of", "on", "or", "our", "please", "should", "so", "some", "such", "that", "the"),
        *("their", "then", "there", "these", "they", "this", "to", "was", "we", "what", "which", "who"),
        *("will", "with", "would", "you", "your"),
    }
)

_stemmer = Stemmer.Stemmer("english")


def split_words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case."""
    return _WORDS.findall(text.lower())


def extract_words(text: str) -> list[str]:
    """Words in lower case, each once, in text order and without stop words; with them if there are no others."""
    words = dict.fromkeys(split_words(text))
    return [word for word in words if word not in STOP_WORDS] or list(words)


def extract_terms(text: str) -> list[str]:
    """Stems in text order, without stop words."""
    return [_stem(word) for word in split_words(text) if word not in STOP_WORDS]


def count_terms(text: str) -> Counter[str]:
    """The count of each stem, in order of first occurrence."""
    counts: Counter[str] = Counter()
    # Counting words first means that each distinct word is stemmed once.
    for word, count in Counter(split_words(text)).items():
        if word not in STOP_WORDS:
            counts[_stem(word)] += count
    return counts


@lru_cache(maxsize=WORDS_CACHED_MAX)
def _stem(word: str) -> str:
    return str(_stemmer.stemWord(word))
