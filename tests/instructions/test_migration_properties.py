"""Properties of a migration that hold for any text."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.markdown_texts import (
    documents,
    is_unsplit,
    lines_in,
    proposed_texts,
    text_of,
    unsplittable_blocks,
    words,
)

from holdfast.errors import InstructionError
from holdfast.instructions.manifest.check import check_draft
from holdfast.instructions.migration.classify import group_sections
from holdfast.instructions.migration.naming import make_slug, name_sections
from holdfast.instructions.migration.proposal import MigrationProposal, MigrationTarget, propose_migration
from holdfast.instructions.migration.sections import LARGE_TOKENS, LineSpan, Section, SourceFile, split_sections
from holdfast.instructions.models import Agent
from holdfast.instructions.settings import InstructionSettings


def proposed(*texts: str) -> MigrationProposal:
    return propose_migration([SourceFile(f"{number}.md", text) for number, text in enumerate(texts)], MigrationTarget())


def assert_can_be_published(proposal: MigrationProposal) -> None:
    agent = Agent("main", "local", 0, always_rules=tuple(rule.text for rule in proposal.rules))
    texts = {unit.name: unit.content for unit in proposal.units}
    checked = check_draft(proposal.draft, texts, agent, settings=InstructionSettings())
    assert checked.failures == ()


@given(st.lists(documents().map(text_of), min_size=1, max_size=2))
def test_every_line_is_in_one_unit_or_the_stub_and_the_manifest_is_publishable(texts: list[str]) -> None:
    proposal = proposed(*texts)
    assert lines_in(proposed_texts(proposal)) == lines_in(texts)
    assert_can_be_published(proposal)


@given(documents(), unsplittable_blocks, documents())
def test_fences_tables_and_nested_lists_stay_unsplit(
    before: tuple[tuple[str, ...], ...], block: tuple[str, ...], after: tuple[tuple[str, ...], ...]
) -> None:
    between = (("A paragraph apart.",),)
    text = text_of((*before, *between, block, *between, *after))
    assert any(is_unsplit(block, proposed_text) for proposed_text in proposed_texts(proposed(text)))


@given(documents())
def test_front_matter_stays_unsplit(document: tuple[tuple[str, ...], ...]) -> None:
    front = ("---", "description: How we test", "globs: *.ts", "---")
    assert any(is_unsplit(front, text) for text in proposed_texts(proposed(text_of((front, *document)))))


@settings(max_examples=3 * settings().max_examples)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@example("---\n---\n# \n")
@example("```\n# never closed\n## still code")
@example("- a\n\n      # deep\n1. b\n> # quoted\n## after")
@example("[only]: a-definition")
@example("\ufeff# title\n\x0b\x0c\x85 text")
def test_any_text_is_split_without_losing_or_repeating_a_line(text: str) -> None:
    sections = split_sections(SourceFile("a.md", text))
    section_lines = [line for section in sections for line in section.text.split("\n") if line.strip()]
    assert section_lines == [line for line in text.split("\n") if line.strip()]


@given(documents().map(text_of))
def test_spans_match_the_lines_of_their_section(text: str) -> None:
    lines = text.split("\n")
    for section in split_sections(SourceFile("a.md", text)):
        span_lines = [line for span in section.spans for line in lines[span.first_line - 1 : span.last_line]]
        assert [line for line in span_lines if line.strip()] == [
            line for line in section.text.split("\n") if line.strip()
        ]


@given(documents().map(text_of))
def test_splitting_at_a_pattern_loses_no_line(text: str) -> None:
    sections = split_sections(SourceFile("a.md", text), at=re.compile("test"))
    assert lines_in(section.text for section in sections) == lines_in([text])


@given(st.lists(words, min_size=1, max_size=60))
def test_large_sections_are_split_between_list_items(items: list[str]) -> None:
    text = "## Rules\n\n" + "\n".join(f"- {item} {' and more' * 40}\n  - inner {item}" for item in items)
    for section in split_sections(SourceFile("a.md", text)):
        assert section.tokens <= LARGE_TOKENS + 100
        assert not section.text.startswith("  - inner")


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8))
def test_unit_names_are_unique_and_valid_in_a_uri(titles: list[str]) -> None:
    sections = [section(title) for title in titles]
    names = name_sections(sections)
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,90}", name) and name != "manifest" for name in names)


@given(st.lists(words, min_size=1, max_size=8, unique_by=make_slug), words)
def test_unit_name_does_not_depend_on_other_sections(titles: list[str], other: str) -> None:
    alone = name_sections([section(title) for title in titles])
    if make_slug(other) not in alone:
        assert name_sections([section(other), *(section(title) for title in titles)])[1:] == alone


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 3)), min_size=1, max_size=30), st.integers(1, 30))
def test_neighbouring_sections_are_merged_in_order_up_to_the_limit(shapes: list[tuple[int, int]], count: int) -> None:
    sections = [
        Section(spans=(LineSpan("a.md", place, place),), text=str(place), tokens=tokens, level=level)
        for place, (tokens, level) in enumerate(shapes)
    ]
    groups = group_sections(sections, count)
    assert len(groups) == min(count, len(sections))
    assert [one for group in groups for one in group] == sections


@pytest.mark.parametrize("text", ["", "\n\n \t\n"])
def test_file_without_text_has_nothing_to_migrate(text: str) -> None:
    with pytest.raises(InstructionError, match="no text"):
        proposed(text)


def section(title: str) -> Section:
    return Section(spans=(LineSpan("docs/a.md", 1, 1),), text=title, tokens=30, level=2, titles=(title,))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, "# " + "[a](b" * 20_000, "`a` `" * 20_000, ">" * 60_000, "## a\n" * 3_000, "# " + "<!--" * 20_000],
)
def test_pathological_text_takes_no_longer_than_other_text(text: str) -> None:
    assert lines_in(proposed_texts(proposed(text))) == lines_in([text])


def test_heading_in_a_list_item_or_quote_starts_no_section() -> None:
    words = "and it goes on with words enough to be no small section at all, " * 3
    text = f"## Rules\n\n- One {words}\n\n  ## Of this item\n\n  {words}\n\n> ## Quoted\n> {words}\n"
    (section,) = split_sections(SourceFile("a.md", text))
    assert section.titles == ("Rules",)
