"""The unit of search: a text with name, description, triggers and content."""

import re

import msgspec

PASSAGE_WORDS = 60
PASSAGES_MAX = 40
"""How many passages of a long content get vectors; the lexical stage covers all of it."""

_BETWEEN_PARTS = re.compile(
    r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)


class SearchUnit(msgspec.Struct, frozen=True):
    """`triggers` are phrases that should find the unit. The id is unique and breaks ties."""

    id: str
    name: str = ""
    description: str = ""
    triggers: tuple[str, ...] = ()
    content: str = ""


def split_name(name: str) -> str:
    """A name as words: `readPdf_file2` is `read Pdf file 2`."""
    return " ".join(part for part in _BETWEEN_PARTS.split(name) if part)


def describe_unit(unit: SearchUnit) -> str:
    return " ".join(part for part in (split_name(unit.name), unit.description, *unit.triggers) if part)


def join_unit_text(unit: SearchUnit) -> str:
    return f"{describe_unit(unit)}\n{unit.content}"


def describe_without_name(unit: SearchUnit) -> str:
    return " ".join(part for part in (unit.description, *unit.triggers) if part)


def split_content(unit: SearchUnit) -> list[str]:
    """The content in passages of `PASSAGE_WORDS` words."""
    words = unit.content.split(maxsplit=PASSAGE_WORDS * PASSAGES_MAX)[: PASSAGE_WORDS * PASSAGES_MAX]
    return [" ".join(words[start : start + PASSAGE_WORDS]) for start in range(0, len(words), PASSAGE_WORDS)]


def list_passages(unit: SearchUnit) -> tuple[str, ...]:
    """The texts that represent a unit's meaning, never empty: its head, its name, and that with each passage."""
    name = split_name(unit.name)
    texts = (describe_unit(unit), name, *(f"{name} {passage}".strip() for passage in split_content(unit)))
    return tuple(dict.fromkeys(text for text in texts if text)) or ("",)
