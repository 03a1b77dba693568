"""Synonyms for paraphrasing requests.

The groups in `synonyms.json` were written by hand, from what people ask agents in general; none is fitted to queries.
"""

import re
from functools import cache
from pathlib import Path

import msgspec

_DOUBLES_CONSONANT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")


class SynonymGroups(msgspec.Struct, frozen=True):
    """Groups of words that mean the same. A word in several groups has the synonyms of the first."""

    verbs: tuple[tuple[str, ...], ...]
    other_words: tuple[tuple[str, ...], ...]


class _Synonyms(msgspec.Struct, frozen=True):
    """The synonyms of each word, and of each verb also in its -ing form."""

    verbs: dict[str, tuple[str, ...]]
    other_words: dict[str, tuple[str, ...]]
    gerunds: dict[str, tuple[str, ...]]


def load_synonym_groups() -> SynonymGroups:
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=SynonymGroups)


@cache
def _synonyms() -> _Synonyms:
    groups = load_synonym_groups()
    verbs, other_words = _index_groups(groups.verbs), _index_groups(groups.other_words)
    gerunds = {_gerund(verb): tuple(map(_gerund, others)) for verb, others in verbs.items()}
    return _Synonyms(verbs, other_words, gerunds)


def _index_groups(groups: tuple[tuple[str, ...], ...]) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for word in group:
            table.setdefault(word, tuple(other for other in group if other != word))
    return table


def is_imperative(word: str) -> bool:
    """Whether these one or two lower-case words can start an imperative request."""
    return word in _synonyms().verbs


def find_synonyms(word: str, *, as_order: bool) -> tuple[str, ...]:
    """Synonyms of a lower-case word in the same form; verbs have them only in imperative position."""
    synonyms = _synonyms()
    if as_order and word in synonyms.verbs:
        return synonyms.verbs[word]
    if word in synonyms.other_words:
        return synonyms.other_words[word]
    if word.endswith("s") and word[:-1] in synonyms.other_words:
        return tuple(_plural(other) for other in synonyms.other_words[word[:-1]])
    return synonyms.gerunds.get(word, ())


def _gerund(verb: str) -> str:
    first, space, rest = verb.partition(" ")
    if _DOUBLES_CONSONANT.fullmatch(first):
        first += first[-1]
    elif first.endswith("e") and not first.endswith("ee"):
        first = first[:-1]
    return f"{first}ing{space}{rest}"


def _plural(noun: str) -> str:
    if noun.endswith("s") and not noun.endswith("ss"):
        return noun
    if noun.endswith(("ss", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
