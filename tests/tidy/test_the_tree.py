"""The rules of the tree: code, documents, public names, and the examples in the documents."""

import re
from pathlib import Path
from typing import get_args

import pytest

from holdfast.ledger.cache.verdicts import VerdictKind
from holdfast.types.prompt import PrefixChangeCause
from tests.tidy.checks import code, documents, figures, public_api, readme

ROOT = Path(__file__).parents[2]
# Pages whose blocks other tests run: see tests/cli/instructions/test_walkthrough.py.
RUN_ELSEWHERE = {"docs/instructions.md", "docs/instructions-rollout.md"}
PAGES = sorted(
    page
    for page in ("README.md", *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")))
    if page not in RUN_ELSEWHERE and readme.runnable_lines(ROOT, page)
)


def join_lines(offenders: list[str]) -> str:
    return "\n".join(("", *offenders))


def test_no_module_is_longer_than_one_idea() -> None:
    assert not (offenders := code.long_modules(ROOT)), join_lines(offenders)


def test_no_function_hides_its_structure_in_its_length() -> None:
    assert not (offenders := code.long_functions(ROOT)), join_lines(offenders)


def test_no_call_has_to_guess_the_order_of_many_parameters() -> None:
    assert not (offenders := code.crowded_signatures(ROOT)), join_lines(offenders)


def test_every_module_says_in_one_sentence_what_it_is_responsible_for() -> None:
    assert not (offenders := code.unexplained_modules(ROOT)), join_lines(offenders)


def test_no_name_is_vague() -> None:
    assert not (offenders := code.vague_names(ROOT)), join_lines(offenders)


def test_no_name_contains_a_retired_word() -> None:
    assert not (offenders := code.retired_identifiers(ROOT)), join_lines(offenders)


def test_clean_folders_outside_src_contain_no_retired_word() -> None:
    assert not (offenders := code.retired_words_in(ROOT)), join_lines(offenders)


def test_every_clean_folder_exists() -> None:
    assert [folder for folder in code.CLEAN_FOLDERS if not (ROOT / folder).exists()] == []


def test_no_short_module_has_a_single_importer_in_its_folder() -> None:
    assert not (offenders := code.tiny_single_importer_modules(ROOT)), join_lines(offenders)


def test_every_test_asserts_something() -> None:
    assert not (offenders := code.tests_without_assertion(ROOT)), join_lines(offenders)


def test_no_file_names_one_machine_or_contains_a_note_to_self() -> None:
    assert not (offenders := code.foreign_text(ROOT)), join_lines(offenders)


def test_only_one_module_lists_the_patterns_of_secrets() -> None:
    assert not (offenders := code.second_secret_patterns(ROOT)), join_lines(offenders)


def test_contract_and_documents_name_the_existing_packages() -> None:
    assert not (offenders := documents.unmapped_packages(ROOT)), join_lines(offenders)


def test_docs_index_and_its_mirror_list_every_page() -> None:
    assert not (offenders := documents.unlisted_pages(ROOT)), join_lines(offenders)


def test_pages_on_the_topics_of_the_seeds_link_one_another() -> None:
    assert not (offenders := documents.unlinked_topics(ROOT)), join_lines(offenders)


def test_every_error_code_is_explained_with_cause_and_fix() -> None:
    assert not (offenders := documents.unexplained_codes(ROOT)), join_lines(offenders)


def test_every_verdict_and_every_cause_of_a_change_has_a_paragraph() -> None:
    headings = re.findall(r"(?m)^###? (.+)$", documents.text_of(ROOT, "docs/verdicts.md"))
    assert headings == [*get_args(VerdictKind), "What changed", *get_args(PrefixChangeCause)]


def test_every_concept_has_a_page_with_a_drawing() -> None:
    pages = {page.stem: page.read_text() for page in (ROOT / "docs/concepts").glob("*.md")}
    assert pages.keys() == {"stability", "breakpoints", "verdicts", "regret", "compaction", "lazy-instructions"}
    drawings = {name: re.findall(r"!\[\w[^\]]+\]\(\.\./(images/[\w-]+\.svg)\)", text) for name, text in pages.items()}
    assert [name for name, paths in drawings.items() if not paths] == []
    assert [path for paths in drawings.values() for path in paths if not (ROOT / "docs" / path).is_file()] == []


def test_comparison_with_peers_has_a_date_and_says_where_they_are_better() -> None:
    page = documents.text_of(ROOT, "docs/comparison.md")
    assert re.search(r"(?m)^As of \d{1,2} \w+ 20\d\d\.", page)
    assert "## Where a peer is the better choice" in page


def test_contributor_page_names_the_reading_path_of_agents() -> None:
    assert "`docs/AGENTS.md`" in documents.text_of(ROOT, "AGENTS.md")


def test_no_page_is_too_long_to_find_something() -> None:
    assert not (offenders := documents.long_pages(ROOT)), join_lines(offenders)


def test_every_figure_that_a_page_quotes_is_the_one_that_was_measured() -> None:
    assert not (offenders := figures.stale_figures(ROOT)), join_lines(offenders)


def test_every_measured_figure_of_a_page_is_marked() -> None:
    assert not (offenders := figures.unmarked_figures(ROOT)), join_lines(offenders)


def test_contributor_page_is_short() -> None:
    assert not (offenders := documents.long_agents_page(ROOT)), join_lines(offenders)


def test_contributor_page_names_existing_files() -> None:
    assert not (offenders := documents.broken_paths(ROOT)), join_lines(offenders)


def test_there_are_few_commands_to_learn() -> None:
    assert not (offenders := documents.crowded_makefile(ROOT)), join_lines(offenders)


def test_every_requirement_names_the_test_that_shows_it() -> None:
    assert not (offenders := documents.unproven_requirements(ROOT)), join_lines(offenders)


def test_every_newcomer_task_names_a_file_that_exists() -> None:
    assert not (offenders := documents.missing_task_files(ROOT)), join_lines(offenders)


def test_decisions_are_numbered_and_say_what_would_change_them() -> None:
    assert not (offenders := documents.disordered_decisions(ROOT)), join_lines(offenders)


def test_every_dependency_is_explained() -> None:
    assert not (offenders := documents.unexplained_dependencies(ROOT)), join_lines(offenders)


def test_changelog_has_a_section_for_this_version() -> None:
    assert not (offenders := documents.stale_changelog(ROOT)), join_lines(offenders)


def test_the_package_and_its_command_report_the_same_version() -> None:
    assert not (offenders := public_api.differing_versions(ROOT)), join_lines(offenders)


def test_every_public_name_has_a_docstring() -> None:
    assert not (offenders := public_api.undocumented_names(ROOT)), join_lines(offenders)


def test_pages_with_examples_are_found() -> None:
    assert {
        "README.md",
        "docs/start/agent.md",
        "docs/start/tests.md",
        "docs/integrations.md",
        "docs/recovery.md",
    } <= set(PAGES)


def test_readme_is_a_demo_and_four_short_starts() -> None:
    assert not (offenders := readme.long_starts(ROOT)), join_lines(offenders)


def test_no_page_hides_a_block_from_these_tests() -> None:
    pages = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))))
    assert not (offenders := [line for page in pages for line in readme.hidden_blocks(ROOT, page)]), join_lines(
        offenders
    )


@pytest.mark.parametrize(
    ("page", "line"), [(page, line) for page in PAGES for line in readme.runnable_lines(ROOT, page)]
)
def test_every_block_of_a_page_has_the_stated_output(page: str, line: int) -> None:
    assert not (offenders := readme.broken_block(ROOT, page, line)), join_lines(offenders)
