"""Shorten texts at word boundaries and split them into sentences."""

import re

ELLIPSIS = "…"
_SPACES = re.compile(r"\s+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def folded(text: str) -> str:
    """The text on one line, with every run of white space as one space."""
    return _SPACES.sub(" ", text).strip()


def shown(text: str, characters_max: int) -> str:
    """The text on one line; a longer one is cut after a whole word and gets an ellipsis."""
    line = folded(text[: characters_max * 4 + 1_000])
    if len(line) <= characters_max:
        return line
    beginning = line[:characters_max]
    whole_words = beginning if line[characters_max] == " " else beginning[: beginning.rfind(" ") + 1]
    return f"{whole_words.rstrip()} {ELLIPSIS}".strip()


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text, stripped."""
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def last_line(text: str, characters_max: int) -> str:
    """The last line that is not blank."""
    tail = text[-4_000:] if len(text) > 4_000 else text
    lines = [line for line in tail.splitlines() if line.strip()]
    if len(text) > 4_000 and len(lines) > 1:
        # The first line may be the truncated end of a longer one.
        lines = lines[1:]
    return shown(lines[-1], characters_max) if lines else ""
