"""How a summary is made to fit a display: which of its lines stay, and how many went."""

from collections.abc import Sequence

import msgspec

SUMMARY_CHARS_MAX = 1_200
SUMMARY_LINES_MAX = 24
SUMMARY_LINE_CHARS_MAX = 160

_HEADINGS = ("Summary:", "Conversation summary:")
_CORE = (
    "- Scope:",
    "- Current work:",
    "- Pending work:",
    "- Key files referenced:",
    "- Tools mentioned:",
    "- Recent user requests:",
    "- Previously compacted context:",
    "- Newly compacted context:",
)
_PRIORITIES = 4


class SummaryCompressionBudget(msgspec.Struct, frozen=True):
    """Characters count line ends in; a line limit of 0 cuts no line."""

    max_chars: int = SUMMARY_CHARS_MAX
    max_lines: int = SUMMARY_LINES_MAX
    max_line_chars: int = SUMMARY_LINE_CHARS_MAX


USUAL_BUDGET = SummaryCompressionBudget()


class SummaryCompressionResult(msgspec.Struct, frozen=True):
    """The summary that fits, and what was done: lines that were cut, said twice, or left out.

    `truncated` says whether it differs from what was given, white space at the ends aside.
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


def compress_summary(summary: str, budget: SummaryCompressionBudget = USUAL_BUDGET) -> SummaryCompressionResult:
    """The most important lines that fit, in their order: headings and core lines, then sections, bullets, the rest.

    A line that does not fit is passed over, and shorter ones behind it may still stand.
    """
    written = summary.split("\n")
    lines, trimmed, duplicates = _normalized(written, budget.max_line_chars)
    kept: list[str] = []
    omitted = len(lines)
    if lines and budget.max_chars > 0 and budget.max_lines > 0:
        kept = _selected(lines, budget) or [_cut(lines[0], budget.max_chars)]
        omitted -= len(kept)
        notice = f"- … {omitted} additional line(s) omitted."
        if omitted and len(kept) < budget.max_lines and len("\n".join((*kept, notice))) <= budget.max_chars:
            kept.append(notice)
    fitted = "\n".join(kept)
    return SummaryCompressionResult(
        summary=fitted,
        original_chars=len(summary),
        compressed_chars=len(fitted),
        original_lines=len(written) - (written[-1] == ""),
        compressed_lines=len(kept),
        trimmed_lines=trimmed,
        removed_duplicate_lines=duplicates,
        omitted_lines=omitted,
        truncated=fitted != summary.strip(),
    )


def compress_summary_text(summary: str) -> str:
    """The summary alone, within the usual limits."""
    return compress_summary(summary).summary


def _normalized(written: Sequence[str], line_chars_max: int) -> tuple[list[str], int, int]:
    """The lines that say something, each once and no longer than allowed; how many were cut, and how many repeated."""
    lines: dict[str, str] = {}
    trimmed = duplicates = 0
    for line in written:
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


def _selected(lines: Sequence[str], budget: SummaryCompressionBudget) -> list[str]:
    chosen: set[int] = set()
    chars = 0
    for priority in range(_PRIORITIES):
        for index, line in enumerate(lines):
            longer = chars + len(line) + bool(chosen)
            if _priority(line) == priority and len(chosen) < budget.max_lines and longer <= budget.max_chars:
                chosen.add(index)
                chars = longer
    return [lines[index] for index in sorted(chosen)]


def _priority(line: str) -> int:
    if line in _HEADINGS or line.startswith(_CORE):
        return 0
    if line.endswith(":"):
        return 1
    return 2 if line.startswith("- ") else 3
