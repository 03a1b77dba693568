"""What should make an agent load a unit: situations, tried against the other units before they are proposed."""

import re
from collections.abc import Callable, Sequence

import msgspec

from holdfast.instructions.coverage import GATE_K, GATE_SHARE_MIN, PARAPHRASES
from holdfast.instructions.migration.naming import title_of
from holdfast.instructions.migration.sections import Section
from holdfast.instructions.situations import plain_title, situation_of, topics_of
from holdfast.retrieval.index import Index
from holdfast.retrieval.meaning import MeaningStage
from holdfast.retrieval.paraphrases import paraphrases
from holdfast.retrieval.units import Unit
from holdfast.retrieval.words import STOP_WORDS

ROUNDS = 3
RARE_WORDS = 3

_WORDS = re.compile(r"[^\W\d_]{4,}")

Meaning = Callable[[], MeaningStage | None]
"""A new stage for each index; None where words alone decide."""


class Candidate(msgspec.Struct, frozen=True):
    name: str
    description: str
    intents: tuple[str, ...]
    text: str
    title: str


def intents_of(section: Section, *, count: int) -> tuple[str, ...]:
    """By the headings, and by what such texts are usually needed for; the best first, more than are needed."""
    titles = [title for title in section.titles if plain_title(title)] or [title_of(section)]
    globs = section.fields.get("globs") or section.fields.get("applyTo") or section.fields.get("paths")
    scope = (f"work on files such as {_one_line(globs)}",) if globs else ()
    said = [situation_of(title) for title in titles[:count]]
    usual = topics_of(titles[0])[:1]
    # Whoever is in need of a text names the deed rather than its heading, unless that names a deed itself.
    is_deed = not said[0].startswith(("work on ", "follow the ")) and not said[0].endswith(" something")
    found = dict.fromkeys(one for one in (*scope, *((*said, *usual) if is_deed else (*usual, *said))) if one)
    return tuple(one[:200] for one in found)


def told_apart(candidates: Sequence[Candidate], *, count: int) -> tuple[Candidate, ...]:
    """So many intents each, and none that another unit has too."""
    taken: set[str] = set()
    found = []
    for candidate in candidates:
        free = [one for one in candidate.intents if one.lower() not in taken][:count]
        taken.update(one.lower() for one in free)
        found.append(msgspec.structs.replace(candidate, intents=tuple(free)))
    return tuple(found)


def found_intents(candidates: Sequence[Candidate], meaning: Meaning) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The intents by which each unit is found; another is tried where none does, and units without any are named."""
    current = tuple(one if one.intents else _other(one, candidates, 0) for one in candidates)
    for attempt in range(ROUNDS):
        index = _index(current, meaning)
        kept = tuple(_kept(one, index) for one in current)
        if kept == current:
            break
        if attempt < ROUNDS - 1:
            kept = tuple(one if one.intents else _other(one, current, attempt) for one in kept)
        current = kept
    return current, tuple(one.name for one in current if not one.intents)


def _kept(candidate: Candidate, index: Index) -> Candidate:
    intents = tuple(one for one in candidate.intents if _share(candidate.name, one, index) >= GATE_SHARE_MIN)
    return msgspec.structs.replace(candidate, intents=intents)


def _share(name: str, intent: str, index: Index) -> float:
    asked = paraphrases(intent, PARAPHRASES)
    hits = sum(name in [one.id for one in index.search(query, limit=GATE_K).found] for query in asked)
    return hits / len(asked) if asked else 0.0


def _other(candidate: Candidate, all_of_them: Sequence[Candidate], attempt: int) -> Candidate:
    """The title with the words that stand in this unit and in few others."""
    others = [one.text.lower() for one in all_of_them if one.name != candidate.name]
    words = dict.fromkeys(word.lower() for word in _WORDS.findall(candidate.text))
    rare = sorted(
        (word for word in words if word not in STOP_WORDS),
        key=lambda word: (sum(word in text for text in others), -candidate.text.lower().count(word), word),
    )
    said = situation_of(candidate.title) if attempt == 0 else "work on"
    return msgspec.structs.replace(candidate, intents=(" ".join((said, *rare[:RARE_WORDS])),))


def _index(candidates: Sequence[Candidate], meaning: Meaning) -> Index:
    units = (Unit(one.name, one.name, one.description, one.intents, one.text) for one in candidates)
    return Index(units, meaning=meaning())


def _one_line(value: object) -> str:
    told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(told.split())[:80]
