"""Finds and extracts the lines of a system prompt that change from call to call, by regular-expression rules."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.errors import UserError

# Rules come from the command line and run on every request, so pattern and text are bounded.
PATTERN_CHARS_MAX = 500
TEXT_CHARS_MAX = 2_000_000

# Nested quantifiers, such as (a+)+, can backtrack exponentially.
_NESTED = re.compile(r"[*+}]\)?[*+{]")


class VolatileRule(msgspec.Struct, frozen=True):
    """Text matching `pattern` changes from call to call and means the same at the end of the conversation."""

    name: str
    pattern: str


# A line that mentions a date or time and contains an ISO date or seconds since the epoch, or one with a weekday and a
# time of day, as `time.ctime()` writes them. Bounded repetitions keep matching linear.
DATE_RULE = VolatileRule(
    "date",
    r"^[^\n]{0,80}(?:\b(?:[Dd]ate|[Tt]ime|[Tt]oday|[Nn]ow)\b[^\n]{0,40}(?<!\d)(?:\d{4}-\d{2}-\d{2}|1\d{9})(?!\d)"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? [A-Za-z0-9 ]{4,16},? [^\n]{0,12}\d{2}:\d{2})[^\n]{0,80}$\n?",
)


class VolatileExtractor:
    """Extracts the text that its rules match, in order of position."""

    def __init__(self, rules: Sequence[VolatileRule] = (DATE_RULE,)) -> None:
        self._rules = tuple((rule.name, _compiled(rule)) for rule in rules)

    def without_rules(self, names: frozenset[str]) -> "VolatileExtractor":
        """A copy without the rules of these names."""
        other = VolatileExtractor(())
        other._rules = tuple(rule for rule in self._rules if rule[0] not in names)
        return other

    def extract(self, text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The remaining text, and the extracted texts, each as (rule name, text)."""
        spans: list[tuple[int, int, str]] = []
        for name, pattern in self._rules:
            for match in pattern.finditer(text[:TEXT_CHARS_MAX]):
                start, end = match.span()
                if start < end and not any(
                    start < other_end and end > other_start for other_start, other_end, _ in spans
                ):
                    spans.append((start, end, name))
        spans.sort()
        rest, position = [], 0
        for start, end, _ in spans:
            rest.append(text[position:start])
            position = end
        return "".join((*rest, text[position:])), tuple((name, text[start:end].strip()) for start, end, name in spans)


def _compiled(rule: VolatileRule) -> re.Pattern[str]:
    """Raises UserError for an invalid pattern, or for one that could backtrack without bound."""
    if len(rule.pattern) > PATTERN_CHARS_MAX or _NESTED.search(rule.pattern):
        raise UserError(f"the rule {rule.name[:40]!a} is too long or has nested quantifiers; simplify it")
    try:
        return re.compile(rule.pattern, re.MULTILINE | re.DOTALL)
    except re.error:
        raise UserError(f"the rule {rule.name[:40]!a} is not a valid regular expression") from None
