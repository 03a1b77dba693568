"""Generates paraphrases of a trigger: synonyms, other sentence forms, reordering, keywords, typing errors.

Only the trigger is used, never a unit's text, and nothing is random: the same trigger has the same paraphrases.
The groups of synonyms in `synonyms.json` were written by hand, from what people ask agents in general; none is fitted
to queries.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path

import msgspec

from holdfast.retrieval.bm25 import STOP_WORDS

_DOUBLES_CONSONANT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")

_STRESSED_AT_END = frozenset({"commit", "submit", "debug", "format", "rerun", "reset", "unplug"})
"""Verbs of two syllables that double their last consonant too: committing, formatting."""


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
    return msgspec.json.decode(Path(__file__).with_name("synonyms.json").read_bytes(), type=SynonymGroups)


@cache
def _synonyms() -> _Synonyms:
    groups = load_synonym_groups()
    verbs, other_words = _index_groups(groups.verbs), _index_groups(groups.other_words)
    gerunds = {to_gerund(verb): tuple(map(to_gerund, others)) for verb, others in verbs.items()}
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


def to_gerund(verb: str) -> str:
    """The -ing form: `run tests` is `running tests`."""
    first, space, rest = verb.partition(" ")
    if _DOUBLES_CONSONANT.fullmatch(first) or first in _STRESSED_AT_END:
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


COUNT = 5
COUNT_MAX = 40
INTENT_CHARACTERS_MAX = 1_000

_OPENINGS = re.compile(
    r"^(?:please|kindly|how (?:do|can|should) (?:i|we)|how to|(?:can|could|would) you(?: please)?"
    r"|help (?:me|us)(?: to)?|(?:i|we) (?:want|need|would like|have|am going|are going) to"
    r"|(?:i'd|we'd) like to|let's|let us)\s+",
    re.I,
)
_MOVED_JOINTS = (" when ", " if ", " before ", " after ", " because ", " while ", " for ", " with ", " in ", " to ")
"""Joints that move to the front together with the part after them; at the others, the parts just change places."""
_JOINTS = (*_MOVED_JOINTS[:6], ", ", " and ", " or ", *_MOVED_JOINTS[6:])
# Sentence forms for requests, for situations that a statement describes, and for bare topics.
_ORDERS = (
    *("how do I {}?", "please {}", "can you {}?", "I need to {}", "what is the right way to {}?", "time to {} now"),
    *("we are about to {}", "what should I know before I {}?"),
)
_SITUATIONS = (
    *("what should I do when {}?", "{}, what now?", "help, {}", "it seems that {}", "which rules hold if {}?"),
    *("how to go on while {}?", "I noticed that {}", "advise me: {}"),
)
_TOPICS = (
    *("what about {}?", "I need help with {}", "tell me more on {}", "{}: what should I do?", "any guidance for {}?"),
    *("how does {} work here?", "my question is about {}", "deal with {}"),
)
_SITUATION = re.compile(
    r"\w (?:is|are|was|were|has|have|had|does|did|cannot|can't|won't|fails|failed|wants|asks)\b", re.I
)


def generate_paraphrases(intent: str, count: int = COUNT) -> tuple[str, ...]:
    """At most `count` different paraphrases, without the intent itself; none for a blank intent."""
    normalized = " ".join(intent[:INTENT_CHARACTERS_MAX].split())
    if not normalized:
        return ()
    unique: dict[str, str] = {_comparison_key(normalized): ""}
    for paraphrase in _iter_paraphrases(normalized):
        if len(unique) > min(count, COUNT_MAX):
            break
        if paraphrase:
            unique.setdefault(_comparison_key(paraphrase), paraphrase)
    return tuple(paraphrase for paraphrase in unique.values() if paraphrase)


def generate_probes(intents: tuple[str, ...], description: str = "", *, count: int) -> tuple[str, ...]:
    """At most `count` paraphrases in total, from each intent and the description in turn."""
    lists = [generate_paraphrases(text, COUNT_MAX) for text in (*intents, description)]
    interleaved = filter(None, chain.from_iterable(zip_longest(*lists)))
    return tuple(dict.fromkeys(interleaved))[:count]


def _iter_paraphrases(intent: str) -> Iterator[str]:
    """The first five use different methods; later ones combine them."""
    core = _strip_opening(intent)
    frames = [frame for frame in _frames(core) if _comparison_key(frame.format(core)) != _comparison_key(intent)]
    for turn in range(COUNT_MAX):
        frame = frames[turn % len(frames)]
        reworded = _replace_synonyms(core, turn)
        yield from (
            reworded,
            frame.format(reworded or core if turn else core),
            _reorder(reworded or core, turn),
            _reduce_to_keywords(core, turn),
            _add_typo(frame.format(core) if turn else core, turn),
            frame.format(_reduce_to_keywords(core, turn) or core),
            _add_typo(reworded, turn),
        )


def _frames(core: str) -> tuple[str, ...]:
    if _SITUATION.search(core):
        return _SITUATIONS
    words = core.lower().split()
    return _ORDERS if is_imperative(words[0]) or is_imperative(" ".join(words[:2])) else _TOPICS


def _strip_opening(intent: str) -> str:
    """Without the phrases of a question or request; never empty."""
    core = intent.rstrip("?!. ") or intent
    while (shorter := _OPENINGS.sub("", core)) != core and shorter:
        core = shorter
    return core


def _replace_synonyms(core: str, turn: int) -> str:
    """Replace each word that has synonyms by the next of them; empty if none has."""
    words = core.split(" ")
    has_verb_first = _frames(core) is _ORDERS
    changed = False
    for index, word in enumerate(words):
        bare = word.strip(",;:").lower()
        as_order = has_verb_first and (index == 0 or words[index - 1].lower() in ("and", "or", "to", "then"))
        if bare and (synonyms := find_synonyms(bare, as_order=as_order)):
            words[index] = word.lower().replace(bare, synonyms[(turn + index) % len(synonyms)])
            changed = True
    return " ".join(words) if changed else ""


def _reorder(core: str, turn: int) -> str:
    """Swap the two parts; empty for one word."""
    joints = [joint for joint in _JOINTS if joint in core]
    if joints:
        joint = joints[turn % len(joints)]
        first, _, second = core.partition(joint)
        if joint in _MOVED_JOINTS:
            return f"{joint.strip()} {second}, {first}"
        return f"{second}{joint}{first}"
    words = core.split()
    if len(words) < 2:
        return ""
    middle = 1 + turn % (len(words) - 1)
    return f"{' '.join(words[middle:])}, {' '.join(words[:middle])}"


def _reduce_to_keywords(core: str, turn: int) -> str:
    """Keywords only; of four or more, one is dropped."""
    words = [word for word in core.split() if word.lower() not in STOP_WORDS]
    if len(words) > 3:
        del words[(turn + 1) % len(words)]
    return " ".join(words).lower()


def _add_typo(text: str, turn: int) -> str:
    """Swap, drop or double a letter of a long word; empty if there is no long word."""
    words = text.split(" ")
    indexes = (index for index, word in enumerate(words) if len(word) > 3)
    long_words = sorted(indexes, key=lambda index: -len(words[index]))
    if not long_words:
        return ""
    index = long_words[turn % len(long_words)]
    word = words[index]
    position = 1 + (turn + len(word)) % (len(word) - 2)
    variants = (
        word[:position] + word[position + 1] + word[position] + word[position + 2 :],
        word[:position] + word[position + 1 :],
        word[:position] + word[position] + word[position:],
    )
    words[index] = variants[turn % len(variants)]
    return " ".join(words)


def _comparison_key(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower())) or text
