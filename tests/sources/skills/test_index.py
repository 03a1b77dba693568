"""The skill index in the prompt."""

from pathlib import Path

import pytest

from holdfast.sources.skills.index import (
    SKILL_INDEX_HEADING,
    SkillIndex,
    estimate_tokens,
    neutralize,
    render_skill_index,
    render_skill_line,
)
from holdfast.sources.skills.skill import Skill, SkillSource


def skill(name: str, description: str, source: SkillSource = "global") -> Skill:
    return Skill(name, description, "body", source, Path(name))


PDF = skill("pdf-processing", "Extract PDF text, fill forms, merge files. Use when handling PDFs.")
REVIEW = skill("code-review", "Run a structured review on the current branch. Use when the user asks for review.")


def test_the_index_is_a_heading_a_sentence_and_a_line_for_each_skill() -> None:
    index = render_skill_index((PDF, REVIEW))
    assert index.text == (
        "## Available skills\n"
        "Use `skill_search(query)` to filter and `skill_load(name)` to read a body.\n"
        "- code-review: Run a structured review on the current branch. Use when the user asks for review.\n"
        "- pdf-processing: Extract PDF text, fill forms, merge files. Use when handling PDFs."
    )
    assert (index.listed_count, index.unlisted_count, index.tokens) == (2, 0, estimate_tokens(index.text))


def test_a_preloaded_skill_is_labelled_on_its_line() -> None:
    lines = render_skill_index((PDF, REVIEW), preloaded={"pdf-processing"}).text.split("\n")
    assert lines[2].startswith("- code-review: Run")
    assert lines[3] == "- pdf-processing [preloaded]: " + PDF.description


def test_without_skills_there_is_no_section() -> None:
    assert render_skill_index(()) == SkillIndex("")


@pytest.mark.parametrize(
    ("description", "line"),
    [
        ("One.\nTwo.", "One. Two."),
        ("One.\n- fake: entry\n## Heading\n", "One. - fake: entry ## Heading"),
        ("a\r\n\r\n\tb", "a b"),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg", "a b c d e f g"),
        ("a\x00b\x1b[31mc", "a b [31mc"),
        ("a\u202eb\u200bc\U000e0041d\ufeff", "abcd"),
        ("</system><b>x</b> a < b <3", "&lt;/system>&lt;b>x&lt;/b> a < b <3"),
        ("<|im_start|> <!-- x --> <?x", "&lt;|im_start|> &lt;!-- x --> &lt;?x"),
        ("```sh\nrm\n``` ~~~~", "'''sh rm ''' '''"),
        ("  a  b ", "a  b"),
        ("\ud800x", "\ufffdx"),
        ("naïve — 技能 👩‍💻 `code` [x]: (y) #1 *b* a_b", "naïve — 技能 👩‍💻 `code` [x]: (y) #1 *b* a_b"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1020 + " yyyyyyyy", "x" * 1020 + " yy…"),
    ],
)
def test_a_description_remains_on_its_line_and_opens_no_tag(description: str, line: str) -> None:
    assert render_skill_line(skill("a", description)) == f"- a: {line}"


def test_neutralised_text_remains_unchanged() -> None:
    once = neutralize("a <b>\n```c")
    assert neutralize(once) == once


def test_skills_that_do_not_fit_are_counted_and_found_by_search() -> None:
    skills = [skill(f"s{number:02}", "x" * 93) for number in range(20)]
    line = estimate_tokens("\n" + render_skill_line(skills[0]))
    budget = estimate_tokens(SKILL_INDEX_HEADING) + 5 * line + 20
    index = render_skill_index(skills, tokens_max=budget)
    assert (index.listed_count, index.unlisted_count) == (5, 15)
    assert index.tokens <= budget
    assert index.text.endswith("\n(15 more skills are not listed: find them with `skill_search`.)")
    assert "- s04: " in index.text
    assert "- s05: " not in index.text


def test_all_skills_are_listed_if_they_fit_exactly() -> None:
    skills = [skill(f"s{number}", "x" * 95) for number in range(4)]
    budget = estimate_tokens(SKILL_INDEX_HEADING) + sum(
        estimate_tokens("\n" + render_skill_line(skill_)) for skill_ in skills
    )
    assert render_skill_index(skills, tokens_max=budget).unlisted_count == 0
    assert render_skill_index(skills, tokens_max=budget - 1).unlisted_count == 1
    assert render_skill_index(skills, tokens_max=budget - 1).text.endswith(
        "(1 more skill is not listed: find it with `skill_search`.)"
    )


def test_preloaded_and_workspace_skills_are_listed_first() -> None:
    skills = [skill(name, "x" * 100, "workspace" if name == "d" else "global") for name in "abcde"]
    two = render_skill_index(skills, preloaded={"e"}, tokens_max=estimate_tokens(SKILL_INDEX_HEADING) + 85)
    assert [line[:6] for line in two.text.split("\n")[2:-1]] == ["- d: x", "- e [p"]


def test_a_short_line_uses_the_room_that_a_long_one_does_not() -> None:
    index = render_skill_index(
        [skill("a", "x" * 400), skill("b", "y")], tokens_max=estimate_tokens(SKILL_INDEX_HEADING) + 25
    )
    assert "\n- b: y\n" in index.text
    assert index.listed_count == 1


def test_a_budget_may_use_another_token_counter() -> None:
    assert render_skill_index((PDF, REVIEW), tokens_max=4, count=lambda text: text.count("\n") or 1).listed_count == 2
    assert render_skill_index((PDF, REVIEW), tokens_max=0).listed_count == 0
