"""What a unit is called and what it is said to be about; the same text has the same name wherever it stands."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from holdfast.instructions.migration.sections import Section
from holdfast.instructions.publication import DESCRIPTION_CHARACTERS_MAX
from holdfast.instructions.situations import plain_title

SLUG_CHARACTERS_MAX = 32
LINE_CHARACTERS_READ = 2_000

_FILE_TITLES = re.compile(r"(?:agents?|claude|gemini|readme|copilot.instructions|instructions?)(?:\.mdc?)?", re.I)
_MARKUP = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)|[`*]+|^[\s>#|-]+|<[^<>]{0,300}>")
_PROSE = re.compile(r"^[^\W\d_`*\[\"']|^[*`\[\"']*[^\W\d_]")


def slug(title: str) -> str:
    """Letters, digits and hyphens; a title without any Latin letter is known by its digest."""
    plain = unicodedata.normalize("NFKD", plain_title(title)).encode("ascii", "ignore").decode().lower()
    plain = re.sub(r"[^a-z0-9]+", "-", re.sub(r"['’]", "", plain)).strip("-")
    if len(plain) > SLUG_CHARACTERS_MAX:
        head = plain[: SLUG_CHARACTERS_MAX + 1].rpartition("-")[0]
        plain = head if len(head) > SLUG_CHARACTERS_MAX // 2 else plain[:SLUG_CHARACTERS_MAX]
    if not re.search(r"[a-z]", plain):
        plain = f"section-{hashlib.sha256(title.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"{plain}-unit" if plain == "manifest" else plain


def names_of(sections: Sequence[Section]) -> tuple[str, ...]:
    """Each another; where titles are the same, what stands above them tells them apart, and at last their order."""
    short = [slug(title_of(one)) for one in sections]
    counts = Counter(short)
    longer = [_told_apart(one, name) if counts[name] > 1 else name for one, name in zip(sections, short, strict=True)]
    taken: set[str] = set()
    reached: Counter[str] = Counter()
    names: list[str] = []
    for name in longer:
        free = name
        while free in taken:
            reached[name] += 1
            free = f"{name}-{reached[name] + 1}"
        taken.add(free)
        names.append(free)
    return tuple(names)


def title_of(section: Section) -> str:
    """The first heading that says something, or the one above, or the file's name."""
    spoken = [title for title in section.titles if plain_title(title) and not _FILE_TITLES.fullmatch(title.strip())]
    above = [title for title in reversed(section.parents) if plain_title(title)]
    return next(iter((*spoken, *above, *section.titles)), "") or _file_title(section)


def description_of(section: Section, *, characters_max: int) -> str:
    """One line: what the front matter says, or the headings with the first sentence below them."""
    said = section.fields.get("description")
    if isinstance(said, str) and said.strip():
        return _cut(" ".join(said.split()), characters_max)
    titles = [plain_title(one) for one in section.titles if not _FILE_TITLES.fullmatch(one.strip())]
    head = "; ".join(titles[:3]) or plain_title(title_of(section))
    sentence = _first_sentence(section.text)
    room = characters_max - len(head) - 2
    told = f"{head}: {_cut(sentence, room)}" if sentence and room > 20 and len(titles) < 3 else head
    return _cut(told, characters_max)


def _file_title(section: Section) -> str:
    path = PurePosixPath(section.spans[0].path if section.spans else "section")
    return path.stem if not _FILE_TITLES.fullmatch(path.name) or not path.parent.name else path.parent.name


def _told_apart(section: Section, name: str) -> str:
    above = next((title for title in reversed(section.parents) if plain_title(title)), None)
    path = PurePosixPath(section.spans[0].path)
    prefix = slug(above) if above is not None and slug(above) != name else slug(path.parent.name or path.stem)
    return f"{prefix}-{name}" if prefix != name else name


def _first_sentence(text: str) -> str:
    for line in text.split("\n"):
        if line.lstrip().startswith(("#", "|", "```", "~~~", "---", "<", "===")):
            if line.lstrip().startswith(("```", "~~~")):
                return ""
            continue
        plain = " ".join(_MARKUP.sub(lambda found: found[1] or "", line[:LINE_CHARACTERS_READ]).split())
        plain = re.sub(r"^\d+[.)]\s+", "", plain)
        if _PROSE.match(plain):
            return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0].rstrip(" :;,.")
    return ""


def _cut(text: str, characters_max: int) -> str:
    """At a word, with a sign that something is missing."""
    text = "".join(one if one.isprintable() else " " for one in text).strip()
    limit = min(characters_max, DESCRIPTION_CHARACTERS_MAX)
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return f"{head.rpartition(' ')[0].rstrip(' ,;:') or head}…"
