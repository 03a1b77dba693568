"""Splits text into search terms: words, stop words, stems."""

import re
from collections import Counter
from functools import lru_cache

import Stemmer

WORDS_KNOWN_MAX = 100_000

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


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case."""
    return _WORDS.findall(text.lower())


def terms(text: str) -> list[str]:
    """Stems in text order, without stop words."""
    return [_stem(word) for word in words(text) if word not in STOP_WORDS]


def counted_terms(text: str) -> Counter[str]:
    """The count of each stem, in order of first occurrence."""
    counts: Counter[str] = Counter()
    # Counting words first means that each distinct word is stemmed once.
    for word, count in Counter(words(text)).items():
        if word not in STOP_WORDS:
            counts[_stem(word)] += count
    return counts


@lru_cache(maxsize=WORDS_KNOWN_MAX)
def _stem(word: str) -> str:
    return str(_stemmer.stemWord(word))
