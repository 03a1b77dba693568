"""Phrase titles as situations: what an agent is about to do when it needs the text, in the words of an intent."""

import functools
import re
import tomllib
from pathlib import Path

import msgspec

from holdfast.retrieval.paraphrases import is_imperative

PHRASE_CHARACTERS_MAX = 80
DATA_FILE = "situations.toml"
_LEADING = re.compile(r"^(?:[\W_]*(?:\d+(?:\.\d+)*[.):]?|step \d+[:.]?|[a-z][.)])\s+)*[\W_]*", re.I)
_HOW_TO = re.compile(
    r"^(?:how (?:to|do (?:i|we|you))|guide to|steps to|instructions for|rules? for|notes? on)\s+", re.I
)
_WHEN = re.compile(r"^(?:when|before|after|if|while|whenever)\b", re.I)
_SITUATED = re.compile(
    r"\b(?:am|is|are|was|were|has|have|had|needs?|wants?|asks?|fails?|failed|cannot|can't|about to|going to|allowed)\b",
    re.I,
)


class _Vocabulary(msgspec.Struct, frozen=True):
    verbs: frozenset[str]
    nouns_too: frozenset[str]
    generic: frozenset[str]
    topics: tuple[tuple[str, str], ...]


@functools.cache
def _vocabulary() -> _Vocabulary:
    data = tomllib.loads(Path(__file__).with_name(DATA_FILE).read_text("utf-8"))
    words = {name: data[name].split() for name in ("verbs", "nouns_too", "generic")}
    return msgspec.convert({**words, "topics": data["topics"]}, _Vocabulary)


def strip_title(title: str) -> str:
    """A title without leading numbering and surrounding punctuation."""
    return _LEADING.sub("", title).rstrip(" :.!*_#-–—") or title.strip()


def base_verb(word: str) -> str | None:
    """The base form of a verb, from the imperative or the -ing form; None for an unknown verb."""
    word = word.lower()
    verbs = _vocabulary().verbs
    if word in verbs or is_imperative(word):
        return word
    if not word.endswith("ing") or len(word) < 5:
        return None
    stem = word[:-3]
    # running -> run, writing -> write.
    undoubled = stem[:-1] if len(stem) > 2 and stem[-1] == stem[-2] else stem
    forms = (stem, f"{stem}e", undoubled)
    return next((form for form in forms if form in verbs or is_imperative(form)), None)


def describe_situation(title: str) -> str:
    """What an agent is about to do when it needs the text under this title; empty for an empty title."""
    plain = _HOW_TO.sub("", strip_title(title))[:PHRASE_CHARACTERS_MAX].strip()
    words = _sentence_case(plain).split()
    if not words:
        return ""
    if _WHEN.match(plain):
        return " ".join(words)
    if words[-1].lower() in _vocabulary().generic:
        return f"follow the {' '.join(words)}"
    verb = base_verb(words[0])
    if verb is not None and not (verb in _vocabulary().nouns_too and words[0].lower() == verb):
        return " ".join((verb, *words[1:])) if len(words) > 1 else f"{verb} something"
    return f"work on {' '.join(words)}"


def find_topics(text: str) -> tuple[str, ...]:
    """Situations in which texts about such topics are usually needed, in the order of the table."""
    lowered = text.lower()
    return tuple(phrase for pattern, phrase in _vocabulary().topics if re.search(pattern, lowered))


def is_situation(trigger: str) -> bool:
    """Whether a trigger describes an action or a situation rather than the content of a text."""
    words = re.findall(r"[a-z']+", trigger.lower())
    if not words:
        return False
    starts_with_verb = base_verb(words[0]) is not None and not (len(words) == 1 and words[0] in _vocabulary().nouns_too)
    is_question = words[0] in ("how", "what", "which", "who", "where", "why", "may", "can", "should", "i", "we")
    return starts_with_verb or is_question or _WHEN.match(trigger) is not None or _SITUATED.search(trigger) is not None


def _sentence_case(title: str) -> str:
    """Lowercase the words of a title in title case; names within a sentence keep their capitals."""
    words = title.split()
    written = [word for word in words if word[:1].isalpha()]
    is_title = all(word[:1].isupper() or len(word) < 4 for word in written)
    return " ".join(
        word.lower() if (is_title or not number) and word[:1].isupper() and word[1:].islower() else word
        for number, word in enumerate(words)
    )
