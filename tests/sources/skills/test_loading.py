"""Which skills load by the rules of our own specification, and their fields."""

import logging
import os
from pathlib import Path

import msgspec
import pytest
from tests.support.skill_folders import DESCRIPTION, library_of, names_in, rules_of, write_raw, write_skill

from holdfast import UserError
from holdfast.errors import SkillValidationError
from holdfast.sources.skills.library import (
    check_skill,
    default_skills_dir,
    load_skill,
    load_skills,
    read_skill_library,
    skill_roots,
)
from holdfast.sources.skills.skill import Skill
from holdfast.sources.skills.store import SkillStore
from holdfast.sources.skills.validation import split_tools


def load_text(root: Path, name: str = "pdf") -> Skill:
    skill = load_skills(global_dir=root, workspace_dir=None).get(name)
    assert skill is not None
    return skill


def load_errors(root: Path, name: str, front: str) -> list[str]:
    return rules_of(check_skill(write_skill(root, name, front), mode="seed"))


def test_a_skill_has_every_field_of_its_front_matter(tmp_path: Path) -> None:
    more = 'license: MIT\ncompatibility: Python 3.11\nmetadata:\n  author: me\n  version: "1.0"\n'
    more += "allowed-tools: Read Write\n"
    folder = write_skill(tmp_path, "pdf", more=more, body="\n\n# Steps\n\n1. Read.\n")
    assert load_text(tmp_path) == Skill(
        name="pdf",
        description=DESCRIPTION,
        body="# Steps\n\n1. Read.\n",
        source="global",
        skill_dir=folder,
        license="MIT",
        compatibility="Python 3.11",
        metadata={"author": "me", "version": "1.0"},
        allowed_tools=("Read", "Write"),
    )


def test_fields_that_are_not_set_are_absent(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", more="license:\ncompatibility: ~\nmetadata:\nallowed-tools: null\n")
    skill = load_text(tmp_path)
    assert (skill.license, skill.compatibility, skill.metadata, skill.allowed_tools) == (None, None, None, ())


def test_a_skill_is_immutable(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    with pytest.raises(AttributeError):
        load_text(tmp_path).name = "other"  # type: ignore[misc]


def test_a_folder_may_be_given_as_a_string(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    assert load_skills(global_dir=str(tmp_path), workspace_dir=None).get("pdf") == load_text(tmp_path)


@pytest.mark.parametrize(
    ("name", "front", "rules"),
    [
        ("other", f"name: pdf\ndescription: {DESCRIPTION}", ["name-folder"]),
        ("PDF", f"name: PDF\ndescription: {DESCRIPTION}", ["name-characters"]),
        ("-pdf", f"name: -pdf\ndescription: {DESCRIPTION}", ["name-characters"]),
        ("pdf-", f"name: pdf-\ndescription: {DESCRIPTION}", ["name-characters"]),
        ("a_b", f"name: a_b\ndescription: {DESCRIPTION}", ["name-characters"]),
        ("навык", f"name: навык\ndescription: {DESCRIPTION}", ["name-characters"]),
        ("a--b", f"name: a--b\ndescription: {DESCRIPTION}", ["name-hyphens"]),
        ("a" * 65, f"name: {'a' * 65}\ndescription: {DESCRIPTION}", ["name-length"]),
        ("pdf", f'name: " pdf "\ndescription: {DESCRIPTION}', ["name-characters", "name-folder"]),
        ("pdf", f"description: {DESCRIPTION}", ["name-missing"]),
        ("pdf", f"name: [pdf]\ndescription: {DESCRIPTION}", ["name-missing"]),
        ("pdf", "name: pdf", ["description-missing"]),
        ("pdf", "name: pdf\ndescription:", ["description-missing"]),
        ("pdf", 'name: pdf\ndescription: "  "', ["description-missing"]),
        ("pdf", "name: pdf\ndescription: [a, b]", ["description-missing"]),
        ("pdf", "name: pdf\ndescription: 123", ["description-missing"]),
        ("7", f"name: 7\ndescription: {DESCRIPTION}", ["name-missing"]),
        ("pdf", "name: pdf\ndescription: x\nlicense: 2.0", ["license-type"]),
        ("pdf", "name: pdf\ndescription: x\nallowed-tools: yes", ["allowed-tools-type"]),
        ("pdf", f"name: pdf\ndescription: {'x' * 1025}", ["description-length"]),
        ("pdf", f"name: pdf\ndescription: x\ncompatibility: {'x' * 501}", ["compatibility-length"]),
        ("pdf", "name: pdf\ndescription: x\ncompatibility: [a]", ["compatibility-type"]),
        ("pdf", "name: pdf\ndescription: x\nlicense: [MIT]", ["license-type"]),
        ("pdf", "name: pdf\ndescription: x\nmetadata: text", ["metadata-type"]),
        ("pdf", "name: pdf\ndescription: x\nmetadata:\n  a:\n    b: c", ["metadata-type"]),
        ("pdf", "name: pdf\ndescription: x\nmetadata:\n  a: ~", ["metadata-type"]),
        ("pdf", "name: pdf\ndescription: x\nallowed-tools:\n  - Read", ["allowed-tools-type"]),
        ("pdf", "- name\n- description", ["not-a-mapping"]),
        ("pdf", "just a text", ["not-a-mapping"]),
        ("pdf", "", ["not-a-mapping"]),
        ("pdf", "name: pdf\ndescription: use when: always", ["yaml"]),
    ],
)
def test_a_broken_rule_keeps_a_skill_from_loading(tmp_path: Path, name: str, front: str, rules: list[str]) -> None:
    assert load_errors(tmp_path, name, front) == rules


@pytest.mark.parametrize(
    "front",
    [
        f"name: {'a' * 64}\ndescription: x",
        "name: a\ndescription: x",
        f"name: a-1\ndescription: {'x' * 1024}",
        f"name: a\ndescription: x\ncompatibility: {'x' * 500}",
        "name: a\ndescription: x\nversion: 3\nunknown: [a, b]",
        "name: a\ndescription: '123'",
        "x: &x a\nname: *x\ndescription: *x",
        "name: 'a'\ndescription: >\n  folded\n  text",
        "# a comment\nname: a\n\ndescription: x",
    ],
)
def test_a_skill_within_the_rules_loads(tmp_path: Path, front: str) -> None:
    name = front.split("name: ")[1].split("\n")[0].strip("'").replace("*x", "a")
    assert load_errors(tmp_path, name, front) == []


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (b"# No front matter\n", "opening"),
        (b"\n---\nname: pdf\ndescription: x\n---\n", "opening"),
        (b"--- \nname: pdf\ndescription: x\n---\n", "opening-blanks"),
        (b"---\nname: pdf\ndescription: x\n", "closing"),
        (b"---\nname: pdf\ndescription: x\n----\n", "closing"),
        (b"---\nname: pdf\ndescription: x\n---foo\n", "closing"),
        (b"", "opening"),
        (b"---", "opening"),
        (b"---\n", "closing"),
        (b"---\n" + b"a: b\n" * 14_000 + b"---\n", "front-matter-size"),
    ],
)
def test_the_front_matter_needs_a_line_of_hyphens_at_both_ends(tmp_path: Path, raw: bytes, rule: str) -> None:
    assert rules_of(check_skill(write_raw(tmp_path, "pdf", raw), mode="seed")) == [rule]


def test_hyphens_inside_a_field_or_the_body_do_not_close_the_front_matter(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", f"name: pdf\ndescription: one --- two\n---x: {DESCRIPTION}", body="a\n---\nb\n")
    skill = load_text(tmp_path)
    assert (skill.description, skill.body) == ("one --- two", "a\n---\nb\n")


@pytest.mark.parametrize("end", [b"---", b"---\n", b"---  \n", b"---\n\n\n"])
def test_a_body_may_be_empty(tmp_path: Path, end: bytes) -> None:
    write_raw(tmp_path, "pdf", b"---\nname: pdf\ndescription: x\n" + end)
    assert (load_text(tmp_path).body, load_text(tmp_path).estimated_body_tokens) == ("", 1)


def test_lines_may_end_with_crlf(tmp_path: Path) -> None:
    write_raw(tmp_path, "pdf", b"---\r\nname: pdf\r\ndescription: x\r\n---\r\nOne\r\nTwo\r\n")
    assert load_text(tmp_path).body == "One\nTwo\n"


def test_metadata_scalars_become_the_text_of_what_yaml_reads(tmp_path: Path) -> None:
    lines = "metadata:\n  version: 1.10\n  count: 0x10\n  stable: yes\n  since: 2024-02-01\n  2: two\n  text: '1.10'\n"
    write_skill(tmp_path, "pdf", more=lines)
    values = {"version": "1.1", "count": "16", "stable": "True", "since": "2024-02-01", "2": "two", "text": "1.10"}
    assert load_text(tmp_path).metadata == values
    written = {"version": "1.10", "count": "0x10", "stable": "yes", "since": "2024-02-01", "2": "two", "text": "1.10"}
    for mode in ("strict", "lenient"):
        skill = load_skills(global_dir=tmp_path, workspace_dir=None, mode=mode).get("pdf")
        assert skill is not None
        assert skill.metadata == written


def test_aliases_and_merge_keys_are_followed(tmp_path: Path) -> None:
    lines = "base: &base {author: me, team: us}\nmetadata:\n  <<: *base\n  team: them\n"
    write_skill(tmp_path, "pdf", more=lines)
    assert load_text(tmp_path).metadata == {"author": "me", "team": "them"}


def test_metadata_with_an_impossible_date_stays_text_as_it_was_written(tmp_path: Path) -> None:
    lines = "metadata:\n  version: 1.10\n  count: 007\n  stable: yes\n  since: 2024-02-31\n  2: two\n"
    write_skill(tmp_path, "pdf", more=lines)
    expected = {"version": "1.10", "count": "007", "stable": "yes", "since": "2024-02-31", "2": "two"}
    assert load_text(tmp_path).metadata == expected


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("Read Write", ("Read", "Write")),
        ("Bash(git add:*) Read", ("Bash(git add:*)", "Read")),
        ("Bash(echo $(ls -l) x), Read,Write", ("Bash(echo $(ls -l) x)", "Read", "Write")),
        ("  Read   ", ("Read",)),
        (", ,", ()),
        ("Bash(git add", ("Bash(git add",)),
        ("a) b", ("a)", "b")),
    ],
)
def test_tools_are_split_with_their_patterns_intact(text: str, tools: tuple[str, ...]) -> None:
    assert split_tools(text) == tools


def test_a_missing_root_is_empty(tmp_path: Path) -> None:
    store = load_skills(global_dir=tmp_path / "none", workspace_dir=None)
    assert (len(store), store.findings) == (0, ())
    assert store == load_skills(global_dir=None, workspace_dir=None) == SkillStore.empty()


def test_a_file_in_place_of_a_root_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert len(load_skills(global_dir=tmp_path / "file", workspace_dir=tmp_path / "file")) == 0


def test_entries_without_a_skill_are_skipped_silently(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_skill(tmp_path, "pdf")
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "empty").mkdir()
    assert names_in(tmp_path) == ["pdf"]
    assert not caplog.records
    assert len(library_of(tmp_path).reports) == 1


def test_a_lower_case_file_is_refused_and_named(tmp_path: Path) -> None:
    write_raw(tmp_path, "pdf", b"---\nname: pdf\ndescription: x\n---\n", file="skill.md")
    library = library_of(tmp_path)
    assert len(library.store) == 0
    assert [finding.rule for finding in library.store.findings] == ["file-name"]
    assert "rename it to SKILL.md" in str(library.store.findings[0])


def test_one_invalid_skill_is_logged_and_the_rest_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_skill(tmp_path, "good")
    write_skill(tmp_path, "bad", "name: bad\n")
    assert names_in(tmp_path) == ["good"]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "bad/SKILL.md:1: there is no description" in record.getMessage()


def test_loading_one_skill_raises_all_its_errors(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "Bad", "name: Bad\n")
    with pytest.raises(SkillValidationError) as error:
        load_skill(folder)
    assert len(error.value.errors) == 2
    assert "Bad/SKILL.md:2: " in str(error.value)
    assert load_skill(write_skill(tmp_path, "good"), source="global").source == "global"


def test_a_workspace_skill_replaces_a_global_one_completely_and_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_skill(tmp_path / "global", "pdf", more="license: MIT\n", body="old")
    write_skill(tmp_path / "global", "only-global")
    write_skill(tmp_path / "workspace", "pdf", body="new")
    write_skill(tmp_path / "workspace", "only-workspace")
    store = load_skills(global_dir=tmp_path / "global", workspace_dir=tmp_path / "workspace")
    skill = store.get("pdf")
    assert skill is not None
    assert (skill.source, skill.body, skill.license) == ("workspace", "new", None)
    sources = {skill.name: skill.source for skill in store.list_skills()}
    assert sources == {"only-global": "global", "only-workspace": "workspace", "pdf": "workspace"}
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, "skill 'pdf' in workspace overrides global definition")
    ]


def test_an_invalid_workspace_skill_leaves_the_global_one(tmp_path: Path) -> None:
    write_skill(tmp_path / "global", "pdf")
    write_skill(tmp_path / "workspace", "pdf", "name: pdf\n")
    skill = load_skills(global_dir=tmp_path / "global", workspace_dir=tmp_path / "workspace").get("pdf")
    assert skill is not None
    assert skill.source == "global"


def test_folders_of_other_programs_are_read_on_request_with_the_lowest_priority(tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    for place, name in (
        (home / ".claude/skills", "a"),
        (home / ".holdfast/skills", "a"),
        (workspace / ".agents/skills", "b"),
        (workspace / ".claude/skills", "b"),
        (workspace / ".metis/skills", "c"),
        (workspace / ".holdfast/skills", "c"),
    ):
        write_skill(place, name, body=str(place.relative_to(tmp_path)))
    own = skill_roots(home / ".holdfast/skills", workspace, home=home)
    assert [skill.name for skill in read_skill_library(own).store.list_skills()] == ["a", "c"]
    also = (".agents/skills", ".claude/skills", ".metis/skills")
    every = read_skill_library(skill_roots(home / ".holdfast/skills", workspace, home=home, also=also)).store
    assert [skill.body for skill in every.list_skills()] == [
        "home/.holdfast/skills",
        "work/.agents/skills",
        "work/.holdfast/skills",
    ]
    with pytest.raises(UserError, match=r"known are \.agents/skills, \.claude/skills"):
        skill_roots(None, None, also=("elsewhere",))
    assert skill_roots(None, None) == ()


def test_skills_are_ordered_by_name(tmp_path: Path) -> None:
    for name in ("b", "a-b", "a", "c10", "c2"):
        write_skill(tmp_path, name)
    assert names_in(tmp_path) == ["a", "a-b", "b", "c10", "c2"]


def test_the_same_roots_load_equal_stores(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    write_skill(tmp_path, "other", more="metadata:\n  a: b\n")
    first, second = (load_skills(global_dir=tmp_path, workspace_dir=None) for _ in range(2))
    assert first == second
    assert [skill.version for skill in first.list_skills()] == [skill.version for skill in second.list_skills()]
    write_skill(tmp_path, "pdf", body="other")
    assert load_skills(global_dir=tmp_path, workspace_dir=None) != first


def test_the_version_depends_only_on_the_body(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", body="hello")
    first = load_text(tmp_path)
    assert first.version == "2cf24dba5fb0a30e"
    assert msgspec.structs.replace(first, description="another").version == first.version
    assert msgspec.structs.replace(first, body="hello!").version != first.version


@pytest.mark.parametrize(("chars", "is_long"), [(20_003, False), (20_004, True)])
def test_a_long_body_loads_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, chars: int, is_long: bool
) -> None:
    write_skill(tmp_path, "pdf", body="x" * chars)
    skill = load_text(tmp_path)
    assert (skill.estimated_body_tokens, skill.over_body_token_warn) == (chars // 4, is_long)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * is_long


def test_skills_are_in_the_home_folder_unless_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_skills_dir({"HOME": "/home/me"}) == Path("/home/me/.holdfast/skills")
    assert default_skills_dir({"HOME": "/home/me", "HOLDFAST_HOME": "/elsewhere"}) == Path("/elsewhere/skills")
    monkeypatch.setitem(os.environ, "HOLDFAST_HOME", str(tmp_path))
    assert default_skills_dir() == tmp_path / "skills"


def store_of(*pairs: tuple[str, str]) -> SkillStore:
    return SkillStore(Skill(name, text, "body", "global", Path(name)) for name, text in pairs)


SEARCHED = store_of(
    ("zip", "Packs files; not for PDF."), ("pdf-redact", "Blackens."), ("pdf-a", "Makes PDF/A."), ("chart", "Draws.")
)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("pdf", ["pdf-a", "pdf-redact", "zip"]),
        ("  PDF ", ["pdf-a", "pdf-redact", "zip"]),
        ("draws", ["chart"]),
        ("a", ["chart", "pdf-a", "pdf-redact", "zip"]),
        ("nothing", []),
        ("", ["chart", "pdf-a", "pdf-redact", "zip"]),
        ("  ", ["chart", "pdf-a", "pdf-redact", "zip"]),
    ],
)
def test_a_name_that_contains_the_query_ranks_above_a_description_that_does(query: str, names: list[str]) -> None:
    assert [skill.name for skill in SEARCHED.search(query)] == names


def test_a_search_returns_at_most_the_requested_number() -> None:
    many = store_of(*((f"s{number:02}", "pdf") for number in range(30)))
    assert [skill.name for skill in many.search("pdf", limit=2)] == ["s00", "s01"]
    assert len(many.search("pdf")) == len(many.search("")) == 10
    assert many.search("pdf", limit=0) == many.search("", limit=-1) == []


def test_a_store_finds_its_skills_by_name() -> None:
    assert SEARCHED.discovery_index()[0] == ("chart", "Draws.")
    assert [name for name, _ in SEARCHED.discovery_index()] == ["chart", "pdf-a", "pdf-redact", "zip"]
    assert (len(SEARCHED), "zip" in SEARCHED, "ZIP" in SEARCHED, 3 in SEARCHED) == (4, True, False, False)
    assert SEARCHED.get("nothing") is None
    assert SEARCHED != "a store"
