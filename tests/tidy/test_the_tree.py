"""Whether this tree is in order."""

from pathlib import Path

import pytest

from tests.tidy.checks import code, documents, public_api, readme

ROOT = Path(__file__).parents[2]
PAGES = ("docs/library.md", "docs/recovery.md")


def listed(offenders: list[str]) -> str:
    return "\n".join(("", *offenders))


def test_no_module_is_too_long_to_read_in_one_go() -> None:
    assert not (found := code.long_modules(ROOT)), listed(found)


def test_no_function_is_too_long_for_a_screen() -> None:
    assert not (found := code.long_functions(ROOT)), listed(found)


def test_no_call_has_to_guess_the_order_of_many_parameters() -> None:
    assert not (found := code.crowded_signatures(ROOT)), listed(found)


def test_every_module_says_in_one_sentence_what_it_answers() -> None:
    assert not (found := code.unexplained_modules(ROOT)), listed(found)


def test_names_say_what_a_thing_is() -> None:
    assert not (found := code.vague_names(ROOT)), listed(found)


def test_every_test_asserts_something() -> None:
    assert not (found := code.tests_without_assertion(ROOT)), listed(found)


def test_no_file_knows_one_machine_or_holds_a_note_to_self() -> None:
    assert not (found := code.foreign_text(ROOT)), listed(found)


def test_contract_and_documents_name_the_packages_there_are() -> None:
    assert not (found := documents.unmapped_packages(ROOT)), listed(found)


def test_the_index_of_the_documents_and_its_mirror_name_every_page() -> None:
    assert not (found := documents.unlisted_pages(ROOT)), listed(found)


def test_the_page_for_contributors_is_short() -> None:
    assert not (found := documents.long_agents_page(ROOT)), listed(found)


def test_the_page_for_contributors_names_files_that_exist() -> None:
    assert not (found := documents.broken_paths(ROOT)), listed(found)


def test_there_are_few_commands_to_learn() -> None:
    assert not (found := documents.crowded_makefile(ROOT)), listed(found)


def test_every_requirement_names_the_test_that_shows_it() -> None:
    assert not (found := documents.unproven_requirements(ROOT)), listed(found)


def test_decisions_are_numbered_and_say_what_would_change_them() -> None:
    assert not (found := documents.disordered_decisions(ROOT)), listed(found)


def test_the_changelog_tells_of_this_version() -> None:
    assert not (found := documents.stale_changelog(ROOT)), listed(found)


def test_the_package_and_its_command_tell_the_same_version() -> None:
    assert not (found := public_api.differing_versions(ROOT)), listed(found)


def test_every_block_of_the_readme_does_what_it_says() -> None:
    # One after the other: what the first stores, the next ones show.
    assert not (found := readme.broken_blocks(ROOT)), listed(found)


def test_the_pages_with_examples_have_some() -> None:
    assert [page for page in PAGES if not readme.runnable_lines(ROOT, page)] == []


@pytest.mark.parametrize(
    ("page", "line"), [(page, line) for page in PAGES for line in readme.runnable_lines(ROOT, page)]
)
def test_every_block_of_a_page_does_what_it_says(page: str, line: int) -> None:
    assert not (found := readme.broken_block(ROOT, page, line)), listed(found)
