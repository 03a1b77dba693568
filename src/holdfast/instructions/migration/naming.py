"""Derives the name, description and situation of a unit from its section, deterministically."""

import functools
import hashlib
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from holdfast.instructions.manifest.validate import DESCRIPTION_CHARACTERS_MAX
from holdfast.instructions.migration.sections import Section
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


def is_noun_too(word: str) -> bool:
    """Whether a word that is a verb is more often a noun at the start of a phrase."""
    return word.lower() in _vocabulary().nouns_too


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


SLUG_CHARACTERS_MAX = 32
LINE_CHARACTERS_READ = 2_000
_FILE_TITLES = re.compile(r"(?:agents?|claude|gemini|readme|copilot.instructions|instructions?)(?:\.mdc?)?", re.I)
_MARKUP = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)|[`*]+|^[\s>#|-]+|<[^<>]{0,300}>")
_PROSE = re.compile(r"^[^\W\d_`*\[\"']|^[*`\[\"']*[^\W\d_]")


def make_slug(title: str) -> str:
    """Letters, digits and hyphens; a title without Latin letters gets a name from its digest."""
    plain = unicodedata.normalize("NFKD", strip_title(title)).encode("ascii", "ignore").decode().lower()
    plain = re.sub(r"[^a-z0-9]+", "-", re.sub(r"['’]", "", plain)).strip("-")
    if len(plain) > SLUG_CHARACTERS_MAX:
        head = plain[: SLUG_CHARACTERS_MAX + 1].rpartition("-")[0]
        plain = head if len(head) > SLUG_CHARACTERS_MAX // 2 else plain[:SLUG_CHARACTERS_MAX]
    if not re.search(r"[a-z]", plain):
        plain = f"section-{hashlib.sha256(title.encode('utf-8', 'replace')).hexdigest()[:8]}"
    # The name `manifest` is reserved in unit URIs.
    return f"{plain}-unit" if plain == "manifest" else plain


def name_sections(sections: Sequence[Section]) -> tuple[str, ...]:
    """Unique names; equal titles get the parent title or file as a prefix, and as a last resort a number."""
    slugs = [make_slug(section_title(section)) for section in sections]
    counts = Counter(slugs)
    titled = zip(sections, slugs, strict=True)
    candidates = [_with_prefix(section, name) if counts[name] > 1 else name for section, name in titled]
    taken: set[str] = set()
    duplicates: Counter[str] = Counter()
    names: list[str] = []
    for name in candidates:
        unused = name
        while unused in taken:
            duplicates[name] += 1
            unused = f"{name}-{duplicates[name] + 1}"
        taken.add(unused)
        names.append(unused)
    return tuple(names)


def section_title(section: Section) -> str:
    """The first heading with content, or the parent heading, or the file name."""
    meaningful = [title for title in section.titles if strip_title(title) and not _FILE_TITLES.fullmatch(title.strip())]
    parent_titles = [title for title in reversed(section.parents) if strip_title(title)]
    return next(iter((*meaningful, *parent_titles, *section.titles)), "") or _file_title(section)


def describe_section(section: Section, *, characters_max: int) -> str:
    """One line: the description in the front matter, or the headings with the first sentence below them."""
    declared = section.fields.get("description")
    if isinstance(declared, str) and declared.strip():
        return _cut(" ".join(declared.split()), characters_max)
    titles = [strip_title(title) for title in section.titles if not _FILE_TITLES.fullmatch(title.strip())]
    headings = "; ".join(titles[:3]) or strip_title(section_title(section))
    sentence = _first_sentence(section.text)
    room = characters_max - len(headings) - 2
    text = f"{headings}: {_cut(sentence, room)}" if sentence and room > 20 and len(titles) < 3 else headings
    return _cut(text, characters_max)


def _file_title(section: Section) -> str:
    path = PurePosixPath(section.spans[0].path if section.spans else "section")
    return path.stem if not _FILE_TITLES.fullmatch(path.name) or not path.parent.name else path.parent.name


def _with_prefix(section: Section, name: str) -> str:
    parent_title = next((title for title in reversed(section.parents) if strip_title(title)), None)
    path = PurePosixPath(section.spans[0].path)
    prefix = make_slug(parent_title) if parent_title is not None else name
    if prefix == name:
        prefix = make_slug(path.parent.name or path.stem)
    return f"{prefix}-{name}" if prefix != name else name


def _first_sentence(text: str) -> str:
    for line in text.split("\n"):
        if line.lstrip().startswith(("#", "|", "```", "~~~", "---", "<", "===")):
            if line.lstrip().startswith(("```", "~~~")):
                return ""
            continue
        plain = " ".join(_MARKUP.sub(lambda match: match[1] or "", line[:LINE_CHARACTERS_READ]).split())
        plain = re.sub(r"^\d+[.)]\s+", "", plain)
        if _PROSE.match(plain):
            return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0].rstrip(" :;,.")
    return ""


def _cut(text: str, characters_max: int) -> str:
    """Truncate at a word, with an ellipsis."""
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    limit = min(characters_max, DESCRIPTION_CHARACTERS_MAX)
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return f"{head.rpartition(' ')[0].rstrip(' ,;:') or head}…"
