"""Derive the name and description of a unit from its section, deterministically."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from holdfast.instructions.manifest.validate import DESCRIPTION_CHARACTERS_MAX
from holdfast.instructions.migration.sections import Section
from holdfast.instructions.migration.situations import strip_title

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
