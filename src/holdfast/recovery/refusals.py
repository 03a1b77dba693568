"""Which known failure a provider's refusal is, by its words."""

import re
from typing import Literal

import msgspec

from holdfast.errors import ProviderError
from holdfast.recovery.scenarios import FailureScenario

MarkProblem = Literal["lifetimes", "marks"]

REFUSED_STATUSES = (400, 413, 422)
"""With which a request is refused before a word of it was read by a model; None is met in streams and commands."""

_MARKS = re.compile(r"cache_control|prompt_cache_breakpoint|cache[_ ]?(point|breakpoint|marker)s?\b", re.IGNORECASE)
_LIFETIMES = re.compile(r"\bttl\b|lifetime", re.IGNORECASE)
_THINKING = re.compile(
    r"thinking.{0,3} blocks?\b|(signature|data)`? in `?(redacted_)?thinking|thought[_ ]signature"
    r"|encrypted[_ ]content|expected `?thinking`?|reasoning.{0,40} item",
    re.IGNORECASE,
)
_PAIRS = re.compile(
    r"tool_use.{0,60}(without|not have|corresponding|follow).{0,60}tool_result|unexpected `?tool_use_id"
    r"|tool result stands behind|result .{0,120}answers no call|call .{0,120}(is not answered|has no result)"
    r"|'tool_calls'|role 'tool' must be a response|no tool (call|output) found for function call"
    r"|function (call|response) (turn|parts?)\b",
    re.IGNORECASE,
)
_WINDOWS = (
    re.compile(r"(?P<sent>\d{1,12}) tokens? > (?P<most>\d{1,12})"),
    re.compile(
        r"(maximum )?context (length|window|limit)\D{0,30}(?P<most>\d{1,12}) tokens?(\D{0,60}(?P<sent>\d{1,12}) tok)?"
    ),
    re.compile(r"input token count \D{0,3}(?P<sent>\d{1,12})\D{1,60}(?P<most>\d{1,12})"),
)


class Window(msgspec.Struct, frozen=True):
    """How many tokens a provider says it takes, and how many it was sent, where it says so."""

    tokens_max: int
    tokens_sent: int | None = None


def scenario_of_refusal(error: ProviderError) -> FailureScenario | None:
    """None for what is no refusal of a request, or is refused for a reason that no recipe is known for."""
    if error.kind == "context_overflow":
        return FailureScenario.ContextOverflow
    if error.kind != "invalid_request" or error.status not in REFUSED_STATUSES:
        return None
    message = str(error)
    # A mark on thinking is a fault of the mark, so marks are looked for first.
    if _MARKS.search(message):
        return FailureScenario.ProviderRejectsMarker
    if _THINKING.search(message):
        return FailureScenario.ThinkingPrefixMismatch
    return FailureScenario.OrphanToolPair if _PAIRS.search(message) else None


def mark_problem(message: str) -> MarkProblem:
    """Whether it is how long marks live that is refused, or the marks themselves."""
    return "lifetimes" if _LIFETIMES.search(message) else "marks"


def window_in(message: str) -> Window | None:
    """The window that an overflow tells of."""
    for pattern in _WINDOWS:
        if (found := pattern.search(message)) and int(found["most"]):
            sent = found["sent"]
            return Window(int(found["most"]), int(sent) if sent else None)
    return None
