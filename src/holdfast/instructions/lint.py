"""Lint a manifest for likely mistakes that do not prevent publication: triggers, duplicates, costs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from holdfast.instructions.index_lines import entry_cost
from holdfast.instructions.situations import is_situation, situation_of
from holdfast.instructions.values import Entry
from holdfast.retrieval.words import terms

COSTLY_TOKENS = 120
SAME_SHARE = 0.85

Rule = Literal["no-trigger", "content-trigger", "same-trigger", "same-text", "when-finishing", "costly-entry"]

_FINISHING = re.compile(
    r"wrap.?up|finish|checklist|definition of done|hand.?over|before (?:you )?(?:submit|push)", re.I
)
_FINISHING_TRIGGER = re.compile(r"wrap|finish|done|complete|submit|hand", re.I)


class Flaw(msgspec.Struct, frozen=True):
    unit: str
    rule: Rule
    message: str
    mend: str


def lint(entries: Sequence[Entry], texts: Mapping[str, str] | None = None) -> tuple[Flaw, ...]:
    """Flaws in the order of the manifest; a flaw of two entries is reported for the second."""
    flaws = [flaw for entry in entries for flaw in _entry_flaws(entry)]
    flaws += _pair_flaws(entries, texts or {})
    order = {entry.name: position for position, entry in enumerate(entries)}
    return tuple(sorted(flaws, key=lambda flaw: order[flaw.unit]))


def _entry_flaws(entry: Entry) -> Iterator[Flaw]:
    triggers = entry.load_triggers
    if not triggers.intents:
        yield Flaw(entry.name, "no-trigger", "it has no intents", "add the situations in which it is needed")
    for intent in triggers.intents:
        # The check knows English only.
        if intent.isascii() and not is_situation(intent):
            message = f"{intent[:80]!a} describes the unit's content"
            yield Flaw(
                entry.name,
                "content-trigger",
                message,
                f"describe what the agent is about to do: {situation_of(intent)!a}",
            )
    about = f"{entry.name} {entry.description}"
    if triggers.intents and _FINISHING.search(about) and not any(map(_FINISHING_TRIGGER.search, triggers.intents)):
        message = "it is needed at the end of a task, but no intent says so"
        yield Flaw(entry.name, "when-finishing", message, "add 'wrap up' or 'finish a task'")
    cost = entry_cost(entry).entry_tokens
    if cost > COSTLY_TOKENS:
        message = f"its entry has {cost} tokens"
        yield Flaw(entry.name, "costly-entry", message, "shorten the description or remove redundant triggers")


def _pair_flaws(entries: Sequence[Entry], texts: Mapping[str, str]) -> Iterator[Flaw]:
    first_with: dict[tuple[str, ...], str] = {}
    for entry in entries:
        for intent in entry.load_triggers.intents:
            other = first_with.setdefault(tuple(sorted(set(terms(intent)))), entry.name)
            if other != entry.name:
                message = f"{intent[:80]!a} is also an intent of {other[:80]!a}"
                yield Flaw(entry.name, "same-trigger", message, "make the intents distinct")
    terms_by_name = [(entry.name, frozenset(terms(texts[entry.name]))) for entry in entries if entry.name in texts]
    for (first, first_terms), (other, other_terms) in combinations(terms_by_name, 2):
        # Jaccard similarity of the terms.
        if first_terms and len(first_terms & other_terms) / len(first_terms | other_terms) >= SAME_SHARE:
            yield Flaw(other, "same-text", f"its text is nearly the same as that of {first[:80]!a}", "keep one of them")
