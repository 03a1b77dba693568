"""Compress a summary to fit a display: keep the most important lines and report how many were omitted."""

import re
from collections.abc import Sequence

import msgspec

# Defaults of seed 002's SummaryCompressionBudget.
SUMMARY_CHARS_MAX = 1_200
SUMMARY_LINES_MAX = 24
SUMMARY_LINE_CHARS_MAX = 160
_HEADINGS = ("Summary:", "Conversation summary:")
_CORE = (
    *("- Scope:", "- Current work:", "- Pending work:", "- Key files referenced:", "- Tools mentioned:"),
    *("- Recent user requests:", "- Previously compacted context:", "- Newly compacted context:"),
)
_PRIORITIES = 4


class SummaryCompressionBudget(msgspec.Struct, frozen=True):
    """`max_chars` includes line ends; `max_line_chars` of 0 means unlimited."""

    max_chars: int = SUMMARY_CHARS_MAX
    max_lines: int = SUMMARY_LINES_MAX
    max_line_chars: int = SUMMARY_LINE_CHARS_MAX


DEFAULT_BUDGET = SummaryCompressionBudget()


class SummaryCompressionResult(msgspec.Struct, frozen=True):
    """The compressed summary, and how many lines were trimmed, duplicate or omitted.

    `truncated` says whether it differs from the input, apart from surrounding white space.
    """

    summary: str
    original_chars: int
    compressed_chars: int
    original_lines: int
    compressed_lines: int
    trimmed_lines: int
    removed_duplicate_lines: int
    omitted_lines: int
    truncated: bool


def compress_summary(summary: str, budget: SummaryCompressionBudget = DEFAULT_BUDGET) -> SummaryCompressionResult:
    """Select lines by priority (headings and core lines, sections, bullets, the rest), in their original order.

    A line that does not fit is skipped; shorter ones after it may still be selected.
    """
    original_lines = summary.split("\n")
    lines, trimmed, duplicates = _normalize_lines(original_lines, budget.max_line_chars)
    selected: list[str] = []
    omitted = len(lines)
    if lines and budget.max_chars > 0 and budget.max_lines > 0:
        selected = _select_lines(lines, budget) or [_cut(lines[0], budget.max_chars)]
        omitted -= len(selected)
        notice = f"- … {omitted} additional line(s) omitted."
        if omitted and len(selected) < budget.max_lines and len("\n".join((*selected, notice))) <= budget.max_chars:
            selected.append(notice)
    compressed = "\n".join(selected)
    return SummaryCompressionResult(
        summary=compressed,
        original_chars=len(summary),
        compressed_chars=len(compressed),
        original_lines=len(original_lines) - (original_lines[-1] == ""),
        compressed_lines=len(selected),
        trimmed_lines=trimmed,
        removed_duplicate_lines=duplicates,
        omitted_lines=omitted,
        truncated=compressed != summary.strip(),
    )


def compress_summary_text(summary: str) -> str:
    """The summary text alone, within the default limits."""
    return compress_summary(summary).summary


# How a summary of ours quotes a request; the first one is the user's goal.
_ASK = re.compile(r'<ask source="(m\d+)">\n(.*?)\n</ask>', re.DOTALL)


def shorten_summary(summary: str) -> str:
    """The summary for a screen, within the default limits: the user's goal first, then the most important lines."""
    ask = _ASK.search(summary)
    if ask is None:
        return compress_summary_text(summary)
    source, text = f" [{ask.group(1)}]", " ".join(ask.group(2).split())
    goal = _cut(f"- Goal: {text}", SUMMARY_LINE_CHARS_MAX - len(source)) + source
    budget = SummaryCompressionBudget(SUMMARY_CHARS_MAX - len(goal) - 1, SUMMARY_LINES_MAX - 1)
    rest = compress_summary(summary[: ask.start()] + summary[ask.end() :], budget).summary
    return f"{goal}\n{rest}" if rest else goal


def _normalize_lines(original_lines: Sequence[str], line_chars_max: int) -> tuple[list[str], int, int]:
    """Non-empty lines, deduplicated and trimmed; how many were trimmed, and how many were duplicates."""
    lines: dict[str, str] = {}
    trimmed = duplicates = 0
    for line in original_lines:
        plain = " ".join(line.split())
        if not plain:
            continue
        cut = _cut(plain, line_chars_max)
        if cut.casefold() in lines:
            duplicates += 1
            continue
        trimmed += cut != plain
        lines[cut.casefold()] = cut
    return list(lines.values()), trimmed, duplicates


def _cut(line: str, chars_max: int) -> str:
    return line if chars_max <= 0 or len(line) <= chars_max else line[: chars_max - 1] + "…"


def _select_lines(lines: Sequence[str], budget: SummaryCompressionBudget) -> list[str]:
    chosen: set[int] = set()
    chars = 0
    for priority in range(_PRIORITIES):
        for index, line in enumerate(lines):
            chars_with_line = chars + len(line) + bool(chosen)
            if _priority(line) == priority and len(chosen) < budget.max_lines and chars_with_line <= budget.max_chars:
                chosen.add(index)
                chars = chars_with_line
    return [lines[index] for index in sorted(chosen)]


def _priority(line: str) -> int:
    if line in _HEADINGS or line.startswith(_CORE):
        return 0
    if line.endswith(":") or line.startswith("## "):
        return 1
    return 2 if line.startswith("- ") else 3
