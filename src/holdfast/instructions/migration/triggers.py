"""Propose intents for units: situations that find their unit when tried against all the others."""

import re
from collections.abc import Callable, Sequence

import msgspec

from holdfast.instructions.coverage.measure import GATE_K, GATE_SHARE_MIN, PARAPHRASES_PER_INTENT
from holdfast.instructions.migration.naming import describe_situation, find_topics, section_title, strip_title
from holdfast.instructions.migration.sections import Section
from holdfast.instructions.migration.situations import find_situations
from holdfast.instructions.recall.selection import WEAK_SCORE_SHARE
from holdfast.retrieval.bm25 import STOP_WORDS
from holdfast.retrieval.encoders.registry import SemanticStage
from holdfast.retrieval.index import SearchIndex
from holdfast.retrieval.paraphrases import generate_paraphrases
from holdfast.retrieval.units import SearchUnit

ROUNDS_MAX = 3
RARE_WORDS = 3
_WORDS = re.compile(r"[^\W\d_]{4,}")

_RESTATES_HEADING = re.compile(r"^(?:work on|follow the) | something$")

MakeMeaningStage = Callable[[], SemanticStage | None]
"""Creates a semantic stage per index; None for lexical retrieval only."""


class TriggerCandidate(msgspec.Struct, frozen=True):
    name: str
    description: str
    intents: tuple[str, ...]
    text: str
    title: str


def propose_intents(section: Section, *, count: int) -> tuple[str, ...]:
    """Candidate intents from the headings and from usual topics, best first; may be more than `count`."""
    titles = [title for title in section.titles if strip_title(title)] or [section_title(section)]
    globs = section.fields.get("globs") or section.fields.get("applyTo") or section.fields.get("paths")
    patterns = ", ".join(map(str, globs)) if isinstance(globs, list) else str(globs)
    scope = (f"work on files such as {' '.join(patterns.split())[:80]}",) if globs else ()
    headings = [describe_situation(title) for title in titles[:count]]
    actions = [heading for heading in headings if not _RESTATES_HEADING.search(heading)]
    # People describe what they are about to do: first what the headings say of that, then what the text orders and
    # when, then the usual topic; a heading restated as a trigger only repeats the description.
    ordered = (*scope, *actions, *find_situations(section.text), *find_topics(titles[0])[:1], *headings)
    intents = dict.fromkeys(intent for intent in ordered if intent)
    return tuple(intent[:200] for intent in intents)


def make_intents_distinct(candidates: Sequence[TriggerCandidate], *, count: int) -> tuple[TriggerCandidate, ...]:
    """At most `count` intents each, without any that an earlier unit has."""
    used: set[str] = set()
    distinct = []
    for candidate in candidates:
        unused = [intent for intent in candidate.intents if intent.lower() not in used][:count]
        used.update(intent.lower() for intent in unused)
        distinct.append(msgspec.structs.replace(candidate, intents=tuple(unused)))
    return tuple(distinct)


def select_working_intents(
    candidates: Sequence[TriggerCandidate], meaning: MakeMeaningStage
) -> tuple[tuple[TriggerCandidate, ...], tuple[str, ...]]:
    """Keep the intents that find their unit, try another if none does; also returns the names of units without any."""
    current = _fill_intents(candidates, candidates, 0)
    for attempt in range(ROUNDS_MAX):
        units = (SearchUnit(unit.name, unit.name, unit.description, unit.intents, unit.text) for unit in current)
        index = SearchIndex(units, meaning=meaning())
        tested = tuple(_keep_found_intents(candidate, index) for candidate in current)
        if tested == current:
            break
        # A new intent of one unit can displace another unit, so that all are tested again in the next round.
        if attempt < ROUNDS_MAX - 1:
            tested = _fill_intents(tested, current, attempt)
        current = tested
    return current, tuple(candidate.name for candidate in current if not candidate.intents)


def _keep_found_intents(candidate: TriggerCandidate, index: SearchIndex) -> TriggerCandidate:
    name = candidate.name
    intents = tuple(intent for intent in candidate.intents if _hit_share(name, intent, index) >= GATE_SHARE_MIN)
    return msgspec.structs.replace(candidate, intents=intents)


def _hit_share(name: str, intent: str, index: SearchIndex) -> float:
    queries = generate_paraphrases(intent, PARAPHRASES_PER_INTENT)
    hits = sum(name in _found(query, index) for query in queries)
    return hits / len(queries) if queries else 0.0


def _found(query: str, index: SearchIndex) -> list[str]:
    """What a recall would return: the first relevant units, without those far below the best."""
    hits = index.search(query, limit=GATE_K).hits
    return [hit.id for hit in hits if hit.score >= WEAK_SCORE_SHARE * hits[0].score]


def _fill_intents(
    units: Sequence[TriggerCandidate], among: Sequence[TriggerCandidate], attempt: int
) -> tuple[TriggerCandidate, ...]:
    return tuple(unit if unit.intents else _with_other_intent(unit, among, attempt) for unit in units)


def _with_other_intent(
    candidate: TriggerCandidate, candidates: Sequence[TriggerCandidate], attempt: int
) -> TriggerCandidate:
    """An intent from the title and the words that are in this unit and in few others."""
    others = [other.text.lower() for other in candidates if other.name != candidate.name]
    words = dict.fromkeys(word.lower() for word in _WORDS.findall(candidate.text))
    rare = sorted(
        (word for word in words if word not in STOP_WORDS),
        key=lambda word: (sum(word in text for text in others), -candidate.text.lower().count(word), word),
    )
    situation = describe_situation(candidate.title) if attempt == 0 else "work on"
    return msgspec.structs.replace(candidate, intents=(" ".join((situation, *rare[:RARE_WORDS])),))
