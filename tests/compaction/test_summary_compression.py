"""A summary that is too long for a display keeps its most important lines, and says what went."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.compaction.summary_compression import SummaryCompressionBudget, compress_summary, compress_summary_text

SEVEN = "\n".join(
    (
        "Conversation summary:",
        "- Scope: 3 earlier messages left the prompt.",
        "- Key timeline:",
        "  - user: make it work",
        "  - assistant: the loop is read and understood by now",
        "- Current work: compress the summary.",
        "- Next, the page that tells of it is written.",
    )
)


def test_lines_that_differ_in_spacing_and_case_are_one() -> None:
    told = compress_summary("Conversation summary:\n\n- Scope:   compact   it.\n- scope: COMPACT it.\n")
    assert told.summary == "Conversation summary:\n- Scope: compact it."
    assert (told.removed_duplicate_lines, told.omitted_lines, told.truncated) == (1, 0, True)


def test_headings_and_core_lines_stay_when_little_fits() -> None:
    told = compress_summary(SEVEN, SummaryCompressionBudget(max_chars=120, max_lines=3, max_line_chars=80))
    assert told.summary.split("\n") == [SEVEN.split("\n")[index] for index in (0, 1, 5)]
    assert (told.omitted_lines, told.compressed_lines, told.original_lines) == (4, 3, 7)


def test_what_went_is_told_where_there_is_room_for_it() -> None:
    told = compress_summary(SEVEN, SummaryCompressionBudget(max_chars=180))
    assert told.summary.endswith(f"\n- … {told.omitted_lines} additional line(s) omitted.")
    assert (told.compressed_lines, told.omitted_lines) == (6, 2)
    assert "omitted" not in compress_summary(SEVEN, SummaryCompressionBudget(max_lines=6)).summary


def test_sections_come_before_bullets_and_bullets_before_the_rest() -> None:
    said = "Words.\n- a bullet\nA section:\n- Pending work: tests"
    kept = [compress_summary(said, SummaryCompressionBudget(max_lines=lines)).summary for lines in (1, 2, 3)]
    assert kept == [
        "- Pending work: tests",
        "A section:\n- Pending work: tests",
        "- a bullet\nA section:\n- Pending work: tests",
    ]


def test_a_line_that_does_not_fit_is_passed_over_for_shorter_ones() -> None:
    told = compress_summary("- a line that is far too long\n- short", SummaryCompressionBudget(max_chars=10))
    assert (told.summary, told.omitted_lines) == ("- short", 1)


def test_a_short_summary_stays_as_it_is() -> None:
    assert compress_summary_text("Summary:\n\nA short line.") == "Summary:\nA short line."
    assert not compress_summary("Summary:\nA short line.\n").truncated


def test_where_no_line_fits_the_first_is_cut() -> None:
    told = compress_summary(SEVEN, SummaryCompressionBudget(max_chars=10))
    assert (told.summary, told.omitted_lines, told.compressed_chars) == ("Conversat…", 6, 10)


@pytest.mark.parametrize("budget", [SummaryCompressionBudget(max_chars=0), SummaryCompressionBudget(max_lines=0)])
def test_without_room_nothing_is_left(budget: SummaryCompressionBudget) -> None:
    told = compress_summary(SEVEN, budget)
    assert (told.summary, told.truncated, told.omitted_lines, told.compressed_lines) == ("", True, 7, 0)


def test_nothing_is_nothing() -> None:
    told = compress_summary(" \n ")
    assert (told.summary, told.truncated, told.omitted_lines) == ("", False, 0)
    assert compress_summary("").original_lines == 0


def test_lines_are_cut_and_counted() -> None:
    told = compress_summary(SEVEN, SummaryCompressionBudget(max_line_chars=1))
    assert (told.summary, told.removed_duplicate_lines, told.trimmed_lines) == ("…", 6, 1)
    long = compress_summary("x" * 400)
    assert (len(long.summary), long.summary[-1], long.trimmed_lines) == (160, "…", 1)
    assert compress_summary("x" * 400, SummaryCompressionBudget(max_line_chars=0)).summary == "x" * 400


budgets = st.builds(SummaryCompressionBudget, st.integers(0, 200), st.integers(0, 8), st.integers(0, 60))


@given(st.text(alphabet="ab \n-:S", max_size=200), budgets)
def test_the_limits_hold_and_every_line_is_accounted_for(text: str, budget: SummaryCompressionBudget) -> None:
    told = compress_summary(text, budget)
    lines = told.summary.split("\n") if told.summary else []
    assert len(told.summary) == told.compressed_chars <= budget.max_chars
    assert len(lines) == told.compressed_lines <= budget.max_lines
    notices = sum("additional line(s) omitted" in line for line in lines)
    said = sum(bool(line.split()) for line in text.split("\n"))
    assert said == len(lines) - notices + told.removed_duplicate_lines + told.omitted_lines


@given(st.text(alphabet="ab \n-:S", max_size=200), budgets)
def test_what_fits_is_not_compressed_again(text: str, budget: SummaryCompressionBudget) -> None:
    told = compress_summary(text, budget)
    if not told.omitted_lines:
        assert compress_summary(told.summary, budget).summary == told.summary
