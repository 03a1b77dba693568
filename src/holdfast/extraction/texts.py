"""How much of a text is shown, cut so that no word is left in half."""

import re

ELLIPSIS = "…"
_SPACES = re.compile(r"\s+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def folded(text: str) -> str:
    """On one line, every run of white space as one space."""
    return _SPACES.sub(" ", text).strip()


def shown(text: str, characters_max: int) -> str:
    """The text on one line; what is too long ends behind a whole word, and with an ellipsis."""
    line = folded(text[: characters_max * 4 + 1_000])
    if len(line) <= characters_max:
        return line
    head = line[:characters_max]
    whole = head if line[characters_max] == " " else head[: head.rfind(" ") + 1]
    return f"{whole.rstrip()} {ELLIPSIS}".strip()


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text, each without white space around it."""
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def last_line(text: str, characters_max: int) -> str:
    """The last line that says something."""
    tail = text[-4_000:] if len(text) > 4_000 else text
    lines = [line for line in tail.splitlines() if line.strip()]
    if len(text) > 4_000 and len(lines) > 1:
        # The first of these may be the end of a longer one.
        lines = lines[1:]
    return shown(lines[-1], characters_max) if lines else ""
