"""What is searched: texts with a name, a description, triggers and content."""

import re

import msgspec

PASSAGE_WORDS = 80
PASSAGES_MAX = 32
"""How much of a long content has vectors of its own; all of it is found by its words."""

_BETWEEN_PARTS = re.compile(
    r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)


class Unit(msgspec.Struct, frozen=True):
    """`triggers` are phrases that should find the unit. An id stands for one unit, and breaks ties."""

    id: str
    name: str = ""
    description: str = ""
    triggers: tuple[str, ...] = ()
    content: str = ""


def spelled_out(name: str) -> str:
    """A name as words: `readPdf_file2` is `read Pdf file 2`."""
    return " ".join(part for part in _BETWEEN_PARTS.split(name) if part)


def head(unit: Unit) -> str:
    """What a unit says of itself before one reads it."""
    return " ".join(part for part in (spelled_out(unit.name), unit.description, *unit.triggers) if part)


def whole_text(unit: Unit) -> str:
    return f"{head(unit)}\n{unit.content}"


def described(unit: Unit) -> str:
    """What a unit says of itself, its name left out."""
    return " ".join(part for part in (unit.description, *unit.triggers) if part)


def pieces(unit: Unit) -> list[str]:
    """The content, piece by piece."""
    words = unit.content.split(maxsplit=PASSAGE_WORDS * PASSAGES_MAX)[: PASSAGE_WORDS * PASSAGES_MAX]
    return [" ".join(words[start : start + PASSAGE_WORDS]) for start in range(0, len(words), PASSAGE_WORDS)]


def passages(unit: Unit) -> tuple[str, ...]:
    """The texts that stand for a unit's meaning: its head, its name, its content piece by piece; never empty."""
    texts = (head(unit), spelled_out(unit.name), *pieces(unit))
    return tuple(dict.fromkeys(text for text in texts if text)) or ("",)
