"""A summary that is too long for a display keeps its most important lines and counts the omitted ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.compaction.models import CompactionResult
from holdfast.compaction.summary_compression import (
    SummaryCompressionBudget,
    compress_summary,
    compress_summary_text,
    shorten_summary,
)

SEVEN = "\n".join(
    (
        "Conversation summary:",
        "- Scope: 3 earlier messages left the prompt.",
        "- Key timeline:",
        "  - user: make it work",
        "  - assistant: the loop is read and understood by now",
        "- Current work: compress the summary.",
        "- Next, the page that documents it is written.",
    )
)


def test_lines_that_differ_only_in_spacing_and_case_are_merged() -> None:
    result = compress_summary("Conversation summary:\n\n- Scope:   compact   it.\n- scope: COMPACT it.\n")
    assert result.summary == "Conversation summary:\n- Scope: compact it."
    assert (result.removed_duplicate_lines, result.omitted_lines, result.truncated) == (1, 0, True)


def test_headings_and_core_lines_stay_when_little_fits() -> None:
    result = compress_summary(SEVEN, SummaryCompressionBudget(max_chars=120, max_lines=3, max_line_chars=80))
    assert result.summary.split("\n") == [SEVEN.split("\n")[index] for index in (0, 1, 5)]
    assert (result.omitted_lines, result.compressed_lines, result.original_lines) == (4, 3, 7)


def test_omitted_lines_are_counted_if_there_is_room() -> None:
    result = compress_summary(SEVEN, SummaryCompressionBudget(max_chars=180))
    assert result.summary.endswith(f"\n- … {result.omitted_lines} additional line(s) omitted.")
    assert (result.compressed_lines, result.omitted_lines) == (6, 2)
    assert "omitted" not in compress_summary(SEVEN, SummaryCompressionBudget(max_lines=6)).summary


def test_sections_come_before_bullets_and_bullets_before_the_rest() -> None:
    text = "Words.\n- a bullet\nA section:\n- Pending work: tests"
    summaries = [compress_summary(text, SummaryCompressionBudget(max_lines=lines)).summary for lines in (1, 2, 3)]
    assert summaries == [
        "- Pending work: tests",
        "A section:\n- Pending work: tests",
        "- a bullet\nA section:\n- Pending work: tests",
    ]


def test_a_line_that_does_not_fit_is_skipped_for_shorter_ones() -> None:
    result = compress_summary("- a line that is far too long\n- short", SummaryCompressionBudget(max_chars=10))
    assert (result.summary, result.omitted_lines) == ("- short", 1)


def test_a_short_summary_is_only_normalised() -> None:
    assert compress_summary_text("Summary:\n\nA short line.") == "Summary:\nA short line."
    assert not compress_summary("Summary:\nA short line.\n").truncated


def test_if_no_line_fits_the_first_is_cut() -> None:
    result = compress_summary(SEVEN, SummaryCompressionBudget(max_chars=10))
    assert (result.summary, result.omitted_lines, result.compressed_chars) == ("Conversat…", 6, 10)


@pytest.mark.parametrize("budget", [SummaryCompressionBudget(max_chars=0), SummaryCompressionBudget(max_lines=0)])
def test_without_room_the_summary_is_empty(budget: SummaryCompressionBudget) -> None:
    result = compress_summary(SEVEN, budget)
    assert (result.summary, result.truncated, result.omitted_lines, result.compressed_lines) == ("", True, 7, 0)


def test_an_empty_summary_stays_empty() -> None:
    result = compress_summary(" \n ")
    assert (result.summary, result.truncated, result.omitted_lines) == ("", False, 0)
    assert compress_summary("").original_lines == 0


def test_long_lines_are_cut_and_counted() -> None:
    result = compress_summary(SEVEN, SummaryCompressionBudget(max_line_chars=1))
    assert (result.summary, result.removed_duplicate_lines, result.trimmed_lines) == ("…", 6, 1)
    long = compress_summary("x" * 400)
    assert (len(long.summary), long.summary[-1], long.trimmed_lines) == (160, "…", 1)
    assert compress_summary("x" * 400, SummaryCompressionBudget(max_line_chars=0)).summary == "x" * 400


budgets = st.builds(SummaryCompressionBudget, st.integers(0, 200), st.integers(0, 8), st.integers(0, 60))


@given(st.text(alphabet="ab \n-:S", max_size=200), budgets)
def test_the_limits_hold_and_every_line_is_accounted_for(text: str, budget: SummaryCompressionBudget) -> None:
    result = compress_summary(text, budget)
    lines = result.summary.split("\n") if result.summary else []
    assert len(result.summary) == result.compressed_chars <= budget.max_chars
    assert len(lines) == result.compressed_lines <= budget.max_lines
    notices = sum("additional line(s) omitted" in line for line in lines)
    line_count = sum(bool(line.split()) for line in text.split("\n"))
    assert line_count == len(lines) - notices + result.removed_duplicate_lines + result.omitted_lines


@given(st.text(alphabet="ab \n-:S", max_size=200), budgets)
def test_compressing_twice_equals_compressing_once(text: str, budget: SummaryCompressionBudget) -> None:
    result = compress_summary(text, budget)
    if not result.omitted_lines:
        assert compress_summary(result.summary, budget).summary == result.summary


@given(st.text(max_size=400), st.lists(st.text(max_size=200), max_size=60))
def test_a_shortened_summary_always_names_the_goal(words: str, lines: list[str]) -> None:
    goal = f"Port the parser. {words}"
    summary = "\n".join(["Preamble.", *(f"- {line}" for line in lines), f'<ask source="m1">\n{goal}\n</ask>'])
    shortened = shorten_summary(summary)
    first = shortened.split("\n")[0]
    assert first.startswith("- Goal: Port the parser.")
    assert first.endswith(" [m1]")
    assert len(first) <= 160
    assert (len(shortened) <= 1_200, len(shortened.split("\n")) <= 24) == (True, True)


def test_a_compaction_shows_its_summary_compressed() -> None:
    lines = "\n".join(f"- module_{number}.py: read x1 [m{number}]" for number in range(80))
    shown = CompactionResult(
        (), summary=f"A preamble.\n\n## Scope\n- 80 messages\n\n## Key files\n{lines}"
    ).compressed_summary
    assert shown.splitlines()[:4] == ["## Scope", "- 80 messages", "## Key files", "- module_0.py: read x1 [m0]"]
    assert len(shown.splitlines()) <= 24
