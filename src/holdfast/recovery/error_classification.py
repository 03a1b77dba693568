"""Classify a provider's error response as a known failure by its message."""

import re
from typing import Literal

import msgspec

from holdfast.errors import ProviderError
from holdfast.recovery.scenarios import FailureScenario

BreakpointProblem = Literal["ttl", "breakpoints"]

REFUSED_STATUSES = (400, 413, 422)
"""HTTP statuses of a request that was rejected before the model read it."""

# The patterns match the providers' error texts, and in _PAIRS also our own transcript checks (types/transcript.py),
# whose messages the simulator returns as errors.
_BREAKPOINTS = re.compile(r"(?i)cache_control|prompt_cache_breakpoint|cache[_ ]?(point|breakpoint|marker)s?\b")
_TTLS = re.compile(r"(?i)\bttl\b|lifetime")
_THINKING = re.compile(
    r"(?i)thinking.{0,3} blocks?\b|(signature|data)`? in `?(redacted_)?thinking|thought[_ ]signature"
    r"|encrypted[_ ]content|expected `?thinking`?|reasoning.{0,40} item"
)
_PAIRS = re.compile(
    r"(?i)tool_use.{0,60}(without|not have|corresponding|follow).{0,60}tool_result|unexpected `?tool_use_id"
    r"|tool result comes after|result .{0,120}answers no call"
    r"|call .{0,120}(is not answered|has no result)"
    r"|'tool_calls'|role 'tool' must be a response|no tool (call|output) found for function call"
    r"|function (call|response) (turn|parts?)\b"
)
_WINDOWS = (
    re.compile(r"(?P<sent>\d{1,12}) tokens? > (?P<most>\d{1,12})"),
    re.compile(
        r"(maximum )?context (length|window|limit)\D{0,30}(?P<most>\d{1,12}) tokens?(\D{0,60}(?P<sent>\d{1,12}) tok)?"
    ),
    re.compile(r"input token count \D{0,3}(?P<sent>\d{1,12})\D{1,60}(?P<most>\d{1,12})"),
)


class ReportedWindow(msgspec.Struct, frozen=True):
    """The context window that a provider reports, and the tokens it received, if it reports them."""

    tokens_max: int
    tokens_sent: int | None = None


def classify_refusal(error: ProviderError) -> FailureScenario | None:
    """None if the request was not rejected, or was rejected for a reason without a recipe."""
    if error.kind == "context_overflow":
        return FailureScenario.ContextOverflow
    if error.kind != "invalid_request" or error.status not in REFUSED_STATUSES:
        return None
    message = str(error)
    # An invalid breakpoint on a thinking block mentions both; the breakpoint is the fault, so it is checked first.
    if _BREAKPOINTS.search(message):
        return FailureScenario.ProviderRejectsMarker
    if _THINKING.search(message):
        return FailureScenario.ThinkingPrefixMismatch
    return FailureScenario.OrphanToolPair if _PAIRS.search(message) else None


def classify_breakpoint_problem(message: str) -> BreakpointProblem:
    """Whether the provider rejects the breakpoints' TTL, or the breakpoints themselves."""
    return "ttl" if _TTLS.search(message) else "breakpoints"


def parse_reported_window(message: str) -> ReportedWindow | None:
    for pattern in _WINDOWS:
        if (match := pattern.search(message)) and int(match["most"]):
            sent = match["sent"]
            return ReportedWindow(int(match["most"]), int(sent) if sent else None)
    return None
