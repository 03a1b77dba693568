"""Lines of a system prompt that change from call to call, known by rules: found, and taken out."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.errors import UserError

PATTERN_CHARS_MAX = 500
TEXT_CHARS_MAX = 2_000_000


class Rule(msgspec.Struct, frozen=True):
    """What `pattern` matches changes from call to call, and means the same at the end of the conversation."""

    name: str
    pattern: str


DATES = Rule(
    "date",
    r"^[^\n]{0,80}\b(?:[Dd]ate|[Tt]ime|[Tt]oday|[Nn]ow)\b[^\n]{0,40}\b\d{4}-\d{2}-\d{2}\b[^\n]{0,80}$\n?",
)

_NESTED = re.compile(r"[*+}]\)?[*+{]")


class Volatile:
    """Takes out what its rules name, in the order in which it stands."""

    def __init__(self, rules: Sequence[Rule] = (DATES,)) -> None:
        self._rules = tuple((rule.name, _compiled(rule)) for rule in rules)

    def taken_out(self, text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The text without it, and what was taken out, each with the name of its rule."""
        found: list[tuple[int, int, str]] = []
        for name, pattern in self._rules:
            for match in pattern.finditer(text[:TEXT_CHARS_MAX]):
                start, end = match.span()
                if start < end and not any(start < other and end > first for first, other, _ in found):
                    found.append((start, end, name))
        found.sort()
        rest, at = [], 0
        for start, end, _ in found:
            rest.append(text[at:start])
            at = end
        return "".join((*rest, text[at:])), tuple((name, text[start:end].strip()) for start, end, name in found)


def _compiled(rule: Rule) -> re.Pattern[str]:
    """Raises UserError for a pattern that is none, or that could take for ever."""
    if len(rule.pattern) > PATTERN_CHARS_MAX or _NESTED.search(rule.pattern):
        raise UserError(f"the rule {rule.name[:40]!a} is too long, or repeats what repeats; write it more simply")
    try:
        return re.compile(rule.pattern, re.MULTILINE | re.DOTALL)
    except re.error:
        raise UserError(f"the rule {rule.name[:40]!a} is no regular expression") from None
