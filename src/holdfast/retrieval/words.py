"""Which words a text is found by."""

import re
from collections import Counter
from functools import lru_cache

import Stemmer

WORDS_KNOWN_MAX = 100_000

_WORDS = re.compile(r"[^\W_]+")

# Words of questions and orders rather than of what they are about; written down once, and not fitted to any queries.
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
    """Letters and digits that stand together, in lower case; there are far fewer of these than of spellings."""
    return _WORDS.findall(text.lower())


def terms(text: str) -> list[str]:
    """Stems in the order of the text, without the words that stand in every request."""
    return [_stem(word) for word in words(text) if word not in STOP_WORDS]


def counted_terms(text: str) -> Counter[str]:
    """How often each stem stands in a text, in the order in which they first do."""
    counted: Counter[str] = Counter()
    for word, count in Counter(words(text)).items():
        if word not in STOP_WORDS:
            counted[_stem(word)] += count
    return counted


@lru_cache(maxsize=WORDS_KNOWN_MAX)
def _stem(word: str) -> str:
    return str(_stemmer.stemWord(word))
