"""What is likely wrong with a manifest though it may be published: triggers, duplicates, costs."""

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
    """By entry, in the order of the manifest; flaws of two entries stand with the second."""
    found = [flaw for entry in entries for flaw in _of_one(entry)]
    found += _of_two(entries, texts or {})
    order = {entry.name: place for place, entry in enumerate(entries)}
    return tuple(sorted(found, key=lambda flaw: order[flaw.unit]))


def _of_one(entry: Entry) -> Iterator[Flaw]:
    triggers = entry.load_triggers
    if not triggers.intents:
        yield Flaw(entry.name, "no-trigger", "it has no intents", "say in which situations it is needed")
    for intent in triggers.intents:
        # Only what is said in English can be judged.
        if intent.isascii() and not is_situation(intent):
            said = f"{intent[:80]!a} says what the unit contains"
            yield Flaw(entry.name, "content-trigger", said, f"say what one is about to do: {situation_of(intent)!a}")
    about = f"{entry.name} {entry.description}"
    if triggers.intents and _FINISHING.search(about) and not any(map(_FINISHING_TRIGGER.search, triggers.intents)):
        said = "it is needed at the end of a task, and no intent says so"
        yield Flaw(entry.name, "when-finishing", said, "add 'wrap up' or 'finish a task'")
    cost = entry_cost(entry).entry_tokens
    if cost > COSTLY_TOKENS:
        said = f"its entry has {cost} tokens"
        yield Flaw(entry.name, "costly-entry", said, "shorten the description, or remove triggers that say the same")


def _of_two(entries: Sequence[Entry], texts: Mapping[str, str]) -> Iterator[Flaw]:
    first_with: dict[tuple[str, ...], str] = {}
    for entry in entries:
        for intent in entry.load_triggers.intents:
            other = first_with.setdefault(tuple(sorted(set(terms(intent)))), entry.name)
            if other != entry.name:
                said = f"{intent[:80]!a} is an intent of {other[:80]!a} too"
                yield Flaw(entry.name, "same-trigger", said, "say what tells them apart")
    words = [(entry.name, frozenset(terms(texts[entry.name]))) for entry in entries if entry.name in texts]
    for (one, ours), (other, theirs) in combinations(words, 2):
        if ours and len(ours & theirs) / len(ours | theirs) >= SAME_SHARE:
            yield Flaw(other, "same-text", f"its text is nearly that of {one[:80]!a}", "keep one of them")
